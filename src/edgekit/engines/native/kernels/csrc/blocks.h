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

/* Reads both halves at the start of a block; false when one is not finite. */
ALWAYS bool two_halves(const uint8_t *at, float *first, float *second)
{
    uint32_t a = u16_at(at), b = u16_at(at + 2);
    *first = half_to_float(a);
    *second = half_to_float(b);
    return half_is_finite(a) && half_is_finite(b);
}

ALWAYS bool one_half(const uint8_t *at, float *value)
{
    uint32_t half = u16_at(at);
    *value = half_to_float(half);
    return half_is_finite(half);
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

/* 2 d, 16 nibbles: the lower halves are weights 0..15, the upper ones 16..31; 8 means 0. */
ALWAYS bool q4_0(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b, &d);
    AS_VECTOR
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
    return fine;
}
UNPACK(q4_0, 18, 32)

/* 2 d, 2 m, 16 nibbles. */
ALWAYS bool q4_1(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d, m;
    bool fine = two_halves(b, &d, &m);
    AS_VECTOR
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
    return fine;
}
UNPACK(q4_1, 20, 32)

/* A weight's fifth bit is the bit of its number in the word `fifth`. */
ALWAYS void five_bits(const uint8_t *nibbles, uint32_t fifth, int *codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = (nibbles[i] & 15) | (int)((fifth >> i & 1) << 4);
        codes[i + 16] = nibbles[i] >> 4 | (int)((fifth >> (i + 16) & 1) << 4);
    }
}

/* 2 d, 4 fifth bits, 16 nibbles; 16 means 0. */
ALWAYS bool q5_0(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d;
    int codes[32];
    bool fine = one_half(b, &d);
    five_bits(b + 6, u32_at(b + 2), codes);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(codes[i] - 16);
    return fine;
}
UNPACK(q5_0, 22, 32)

/* 2 d, 2 m, 4 fifth bits, 16 nibbles. */
ALWAYS bool q5_1(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d, m;
    int codes[32];
    bool fine = two_halves(b, &d, &m);
    five_bits(b + 8, u32_at(b + 4), codes);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)codes[i] + m;
    return fine;
}
UNPACK(q5_1, 24, 32)

/* 2 d, 32 signed bytes. */
ALWAYS bool q8_0(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b, &d);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(int8_t)b[2 + i];
    return fine;
}
UNPACK(q8_0, 34, 32)

/* ggml-common.h, kvalues_iq4nl @ b21e4de */
static const int8_t UNEVEN[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

/* OCP's e2m1, doubled. */
static const int8_t FOUR_BIT_FLOATS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2 d, 16 nibbles: places in UNEVEN. */
ALWAYS bool iq4_nl(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b, &d);
    AS_VECTOR
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)UNEVEN[b[2 + i] & 15];
        y[i + 16] = d * (float)UNEVEN[b[2 + i] >> 4];
    }
    return fine;
}
UNPACK(iq4_nl, 18, 32)

/* The scale 2^(e - 128): half of OCP's, because the codes are doubled. Below 2 it is subnormal. */
ALWAYS float exponent_to_float(uint32_t e)
{
    return float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* 1 exponent, 16 nibbles. From 253 on, 12 * 2^(e - 128) is no float32; 255 means "no number". */
ALWAYS bool mxfp4(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    if (b[0] > 252)
        return false;
    float d = exponent_to_float(b[0]);
    AS_VECTOR
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)FOUR_BIT_FLOATS[b[1 + i] & 15];
        y[i + 16] = d * (float)FOUR_BIT_FLOATS[b[1 + i] >> 4];
    }
    return true;
}
UNPACK(mxfp4, 17, 32)
