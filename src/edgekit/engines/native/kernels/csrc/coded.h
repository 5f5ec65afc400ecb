/* Blocks of small codes, the form that most types have: weight i is codes[i] times the scale of its
   part, plus the part's offset. */

struct coded {
    int8_t codes[256]; /* of one block, the largest first member so that vectors are aligned */
    float scales[16], offsets[16];
};

/* LANES codes as floats. */
#if defined(CODES)
ALWAYS vec codes(const uint8_t *from) { return CODES(from); }
#elif LANES > 1
ALWAYS vec codes(const uint8_t *from)
{
    int8_t packed __attribute__((vector_size(LANES)));
    memcpy(&packed, from, sizeof packed);
    return __builtin_convertvector(__builtin_convertvector(packed, words), vec);
}
#else
ALWAYS vec codes(const uint8_t *from) { return (float)(int8_t)*from; }
#endif

/* LANES weights from weight `i` on. `part_weights` is a multiple of LANES. */
ALWAYS vec coded_weights(const struct coded *c, int i, const int part_weights, const bool has_offsets)
{
    vec scaled = codes((const uint8_t *)c->codes + i) * splat(c->scales[i / part_weights]);
    return has_offsets ? scaled + splat(c->offsets[i / part_weights]) : scaled;
}

enum { DOT_SUMS = 4 }; /* an addition takes four cycles, and none waits for another */

/* Adds the products of a block and the floats from `first` on to the sums. */
#if defined(DIGITS)
ALWAYS void add_products(const struct coded *c, const struct factors *row, ptrdiff_t first, vec *sums,
                         const int block_weights, const int part_weights, const bool has_offsets)
{
    add_digit_products(c->codes, c->scales, has_offsets ? c->offsets : NULL, row, first, sums,
                       block_weights, part_weights);
}
#else
ALWAYS void add_products(const struct coded *c, const struct factors *row, ptrdiff_t from, vec *sums,
                         const int block_weights, const int part_weights, const bool has_offsets)
{
    const float *x = row->x + from;
    const int together = block_weights < DOT_SUMS * LANES ? block_weights / LANES : DOT_SUMS;
    for (int first = 0; first < block_weights; first += together * LANES)
        UNROLL
        for (int s = 0; s < together; s++) {
            int i = first + s * LANES;
            sums[s] += coded_weights(c, i, part_weights, has_offsets) * load(x + i);
        }
}
#endif

#if defined(PAIRS) /* which read blocks on their own (pairs.h) */
#define READ(name, part_weights, has_offsets)                                                      \
    enum { name##_part = part_weights, name##_offsets = has_offsets };                             \
    static bool read_##name(const uint8_t *block, struct coded *to, const struct codebooks *books) \
    {                                                                                              \
        return name(block, to, books);                                                             \
    }
#else
#define READ(name, part_weights, has_offsets)
#endif

/* The functions of a type, made of `name`, which reads one block and says whether its scales are
   finite: `unpack` writes floats, `dot` multiplies by one row of floats on the way. */
#define CODED(name, block_bytes, block_weights, part_weights, has_offsets)                         \
    static ptrdiff_t unpack_##name(const uint8_t *source, ptrdiff_t blocks, float *out,            \
                                   const struct codebooks *books)                                  \
    {                                                                                              \
        struct coded c;                                                                            \
        for (ptrdiff_t b = 0; b < blocks; b++) {                                                   \
            if (!name(source + b * (block_bytes), &c, books))                                      \
                return b;                                                                          \
            float *to = out + b * (block_weights);                                                 \
            for (int i = 0; i < (block_weights); i += LANES)                                       \
                store(to + i, coded_weights(&c, i, part_weights, has_offsets));                    \
        }                                                                                          \
        return -1;                                                                                 \
    }                                                                                              \
    READ(name, part_weights, has_offsets)                                                          \
    static ptrdiff_t dot_##name(const uint8_t *source, ptrdiff_t blocks,                           \
                                const struct factors *row, const struct codebooks *books,          \
                                float *out)                                                        \
    {                                                                                              \
        struct coded c;                                                                            \
        vec sums[DOT_SUMS] = {splat(0), splat(0), splat(0), splat(0)};                             \
        for (ptrdiff_t b = 0; b < blocks; b++) {                                                   \
            if (!name(source + b * (block_bytes), &c, books))                                      \
                return b;                                                                          \
            add_products(&c, row, b * (block_weights), sums, block_weights, part_weights,          \
                         has_offsets);                                                             \
        }                                                                                          \
        *out = total((sums[0] + sums[1]) + (sums[2] + sums[3]));                                   \
        return -1;                                                                                 \
    }
