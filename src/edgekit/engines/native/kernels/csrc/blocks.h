/* Plain numbers and blocks of 32 weights. Each function unpacks one block and says whether its
   scales are finite; UNPACK makes the loop around it.

   Products of a half and small codes are exact in float32, so it does not matter whether the
   compiler fuses a product with the sum that follows: there is one rounding either way. */

ALWAYS uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

ALWAYS uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

ALWAYS bool half_is_finite(uint32_t half) { return (half & 0x7c00) != 0x7c00; }

/* Exact. A subnormal half n * 2^-24 is the distance of 0.5 + n * 2^-24 from 0.5. */
ALWAYS float half_to_float(uint32_t half)
{
    uint32_t rest = half & 0x7fff, sign = (half & 0x8000) << 16;
    uint32_t normal = (rest << 13) + (112u << 23);
    uint32_t small = bits_of(float_of(rest | 0x3f000000) - 0.5f);
    uint32_t is_small = (uint32_t)((int32_t)(rest - 0x400) >> 31); /* all ones, or zero */
    return float_of((small & is_small) | (normal & ~is_small) | sign);
}

#define UNPACK(name, block_bytes, block_weights)                                                   \
    static ptrdiff_t unpack_##name(const uint8_t *source, ptrdiff_t blocks, float *out,            \
                                   const struct codebooks *books)                                  \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < blocks; i++)                                                     \
            if (!name(source + i * (block_bytes), out + i * (block_weights), books))               \
                return i;                                                                          \
        return -1;                                                                                 \
    }

ALWAYS bool one_half(const uint8_t *at, float *value)
{
    uint32_t half = u16_at(at);
#if defined(ONE_HALF)
    *value = ONE_HALF(half);
#else
    *value = half_to_float(half);
#endif
    return half_is_finite(half);
}

/* Reads both halves at the start of a block; false when one is not finite. */
ALWAYS bool two_halves(const uint8_t *at, float *first, float *second)
{
    bool fine = one_half(at, first);
    return one_half(at + 2, second) && fine;
}

/* Plain numbers go in runs of this length, so that finding the bad one costs nothing else. */
enum { RUN = 256 };

static ptrdiff_t first_not_finite(const float *values, ptrdiff_t count)
{
    uint32_t carries = 0; /* into the sign, from an exponent that is all ones */
    for (ptrdiff_t i = 0; i < count; i++)
        carries |= (bits_of(values[i]) & 0x7f800000) + 0x00800000;
    if (!(carries >> 31))
        return -1;
    for (ptrdiff_t i = 0; i < count; i++)
        if ((bits_of(values[i]) & 0x7f800000) == 0x7f800000)
            return i;
    return -1;
}

#define UNPACK_PLAIN(name, size)                                                                   \
    static ptrdiff_t unpack_##name(const uint8_t *source, ptrdiff_t blocks, float *out,            \
                                   const struct codebooks *books)                                  \
    {                                                                                              \
        (void)books;                                                                               \
        for (ptrdiff_t i = 0; i < blocks; i += RUN) {                                              \
            ptrdiff_t count = blocks - i < RUN ? blocks - i : RUN;                                 \
            name(source + i * (size), out + i, count);                                             \
            ptrdiff_t bad = first_not_finite(out + i, count);                                      \
            if (bad >= 0)                                                                          \
                return i + bad;                                                                    \
        }                                                                                          \
        return -1;                                                                                 \
    }

ALWAYS void f32(const uint8_t *RESTRICT source, float *RESTRICT out, ptrdiff_t count)
{
    memcpy(out, source, (size_t)count * 4);
}
UNPACK_PLAIN(f32, 4)

/* An infinite half or NaN must stay one: its exponent is all ones again. */
ALWAYS void f16(const uint8_t *RESTRICT source, float *RESTRICT out, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, source + 2 * i, 2);
        uint32_t is_special = ((half & 0x7fffu) + 0x400) >> 15;
        out[i] = float_of(bits_of(half_to_float(half)) | ((0 - is_special) & 0x7f800000));
    }
}
UNPACK_PLAIN(f16, 2)

/* LANES halves as floats. */
#if defined(HALVES)
ALWAYS vec halves(const uint8_t *from) { return HALVES(from); }
#elif LANES > 1
/* As half_to_float, and f16's care for what is not finite, in all lanes. */
ALWAYS vec halves(const uint8_t *from)
{
    uint16_t packed __attribute__((vector_size(LANES * 2)));
    memcpy(&packed, from, sizeof packed);
    words half = __builtin_convertvector(packed, words);
    words rest = half & 0x7fff, normal = (rest << 13) + (112 << 23);
    words small = (words)((vec)(rest | 0x3f000000) - splat(0.5f)), is_small = rest < 0x400;
    words special = (rest > 0x7bff) & 0x7f800000;
    return (vec)((small & is_small) | (normal & ~is_small) | special | (half >> 15 << 31));
}
#else
ALWAYS vec halves(const uint8_t *from)
{
    float value;
    f16(from, &value, 1);
    return value;
}
#endif

/* The upper half of a float32. */
ALWAYS void bf16(const uint8_t *RESTRICT source, float *RESTRICT out, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        uint16_t upper;
        memcpy(&upper, source + 2 * i, 2);
        out[i] = float_of((uint32_t)upper << 16);
    }
}
UNPACK_PLAIN(bf16, 2)

ALWAYS vec floats(const uint8_t *from)
{
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

ALWAYS vec upper_halves(const uint8_t *from)
{
    float values[LANES];
    bf16(from, values, LANES);
    return load(values);
}

/* `read` gives LANES numbers of `size` bytes each. A sum that is not finite is made of a weight or
   an x that is not; only then is it looked for. */
#define DOT_PLAIN(name, size, read)                                                                \
    static ptrdiff_t dot_##name(const uint8_t *source, ptrdiff_t blocks,                           \
                                const struct factors *row, const struct codebooks *books,          \
                                float *out)                                                        \
    {                                                                                              \
        const float *x = row->x;                                                                   \
        vec sums[DOT_SUMS] = {splat(0), splat(0), splat(0), splat(0)};                             \
        ptrdiff_t i = 0;                                                                           \
        for (; i + DOT_SUMS * LANES <= blocks; i += DOT_SUMS * LANES)                              \
            UNROLL                                                                                 \
            for (int s = 0; s < DOT_SUMS; s++)                                                     \
                sums[s] += read(source + (i + s * LANES) * (size)) * load(x + i + s * LANES);      \
        float sum = total((sums[0] + sums[1]) + (sums[2] + sums[3])), run[RUN];                    \
        if (i < blocks) {                                                                          \
            name(source + i * (size), run, blocks - i);                                            \
            for (ptrdiff_t rest = i; rest < blocks; rest++)                                        \
                sum += run[rest - i] * x[rest];                                                    \
        }                                                                                          \
        *out = sum;                                                                                \
        if (fabsf(sum) <= FLT_MAX)                                                                 \
            return -1;                                                                             \
        for (i = 0; i < blocks; i += RUN) {                                                        \
            ptrdiff_t bad = unpack_##name(source + i * (size), least(blocks - i, RUN), run, books);\
            if (bad >= 0)                                                                          \
                return i + bad;                                                                    \
        }                                                                                          \
        return -1;                                                                                 \
    }
DOT_PLAIN(f32, 4, floats)
DOT_PLAIN(f16, 2, halves)
DOT_PLAIN(bf16, 2, upper_halves)

/* 16 bytes: the lower halves are codes 0..15, the upper ones 16..31. */
ALWAYS void nibbles(const uint8_t *RESTRICT packed, int8_t *RESTRICT codes, int zero)
{
    AS_VECTOR
    for (int i = 0; i < 16; i++) {
        codes[i] = (int8_t)((packed[i] & 15) - zero);
        codes[i + 16] = (int8_t)((packed[i] >> 4) - zero);
    }
}

/* 2 d, 16 nibbles; 8 means 0. */
ALWAYS bool q4_0(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    nibbles(b + 2, to->codes, 8);
    return one_half(b, to->scales);
}
CODED(q4_0, 18, 32, 32, false)

/* 2 d, 2 m, 16 nibbles. */
ALWAYS bool q4_1(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    nibbles(b + 4, to->codes, 0);
    return two_halves(b, to->scales, to->offsets);
}
CODED(q4_1, 20, 32, 32, true)

/* A weight's fifth bit is the bit of its number in the word `fifth`. */
ALWAYS void five_bits(const uint8_t *RESTRICT packed, uint32_t fifth, int8_t *RESTRICT codes, int zero)
{
    AS_VECTOR
    for (int i = 0; i < 16; i++) {
        codes[i] = (int8_t)(((packed[i] & 15) | (fifth >> i & 1) << 4) - zero);
        codes[i + 16] = (int8_t)((packed[i] >> 4 | (fifth >> (i + 16) & 1) << 4) - zero);
    }
}

/* 2 d, 4 fifth bits, 16 nibbles; 16 means 0. */
ALWAYS bool q5_0(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    five_bits(b + 6, u32_at(b + 2), to->codes, 16);
    return one_half(b, to->scales);
}
CODED(q5_0, 22, 32, 32, false)

/* 2 d, 2 m, 4 fifth bits, 16 nibbles. */
ALWAYS bool q5_1(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    five_bits(b + 8, u32_at(b + 4), to->codes, 0);
    return two_halves(b, to->scales, to->offsets);
}
CODED(q5_1, 24, 32, 32, true)

/* 2 d, 32 signed bytes. */
ALWAYS bool q8_0(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    memcpy(to->codes, b + 2, 32);
    return one_half(b, to->scales);
}
CODED(q8_0, 34, 32, 32, false)

/* ggml-common.h, kvalues_iq4nl @ b21e4de */
static const int8_t UNEVEN[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

/* OCP's e2m1, doubled. */
static const int8_t FOUR_BIT_FLOATS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* As `nibbles`, but they are places in a table. */
ALWAYS void look_up(const uint8_t *RESTRICT packed, const int8_t *table, int8_t *RESTRICT codes)
{
    int8_t places[32];
    nibbles(packed, places, 0);
#if defined(SIXTEEN_OF)
    SIXTEEN_OF(table, places, codes);
    SIXTEEN_OF(table, places + 16, codes + 16);
#else
    for (int i = 0; i < 32; i++)
        codes[i] = table[places[i]];
#endif
}

/* 2 d, 16 nibbles. */
ALWAYS bool iq4_nl(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    look_up(b + 2, UNEVEN, to->codes);
    return one_half(b, to->scales);
}
CODED(iq4_nl, 18, 32, 32, false)

/* The scale 2^(e - 128): half of OCP's, because the codes are doubled. Below 2 it is subnormal. */
ALWAYS float exponent_to_float(uint32_t e)
{
    return float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* 1 exponent, 16 nibbles. From 253 on, 12 * 2^(e - 128) is no float32; 255 means "no number". */
ALWAYS bool mxfp4(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    look_up(b + 1, FOUR_BIT_FLOATS, to->codes);
    to->scales[0] = exponent_to_float(b[0] & 255);
    return b[0] <= 252;
}
CODED(mxfp4, 17, 32, 32, false)
