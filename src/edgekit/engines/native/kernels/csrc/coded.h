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

/* Adds the products of a block and as many floats to the sums. */
ALWAYS void add_products(const struct coded *c, const float *x, vec *sums, const int block_weights,
                         const int part_weights, const bool has_offsets)
{
    const int together = block_weights < DOT_SUMS * LANES ? block_weights / LANES : DOT_SUMS;
    for (int first = 0; first < block_weights; first += together * LANES)
        UNROLL
        for (int s = 0; s < together; s++) {
            int i = first + s * LANES;
            sums[s] += coded_weights(c, i, part_weights, has_offsets) * load(x + i);
        }
}

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
    static ptrdiff_t dot_##name(const uint8_t *source, ptrdiff_t blocks, const float *x,           \
                                const struct codebooks *books, float *out)                         \
    {                                                                                              \
        struct coded c;                                                                            \
        vec sums[DOT_SUMS] = {splat(0), splat(0), splat(0), splat(0)};                             \
        for (ptrdiff_t b = 0; b < blocks; b++) {                                                   \
            if (!name(source + b * (block_bytes), &c, books))                                      \
                return b;                                                                          \
            add_products(&c, x + b * (block_weights), sums, block_weights, part_weights,           \
                         has_offsets);                                                             \
        }                                                                                          \
        *out = total((sums[0] + sums[1]) + (sums[2] + sums[3]));                                   \
        return -1;                                                                                 \
    }
