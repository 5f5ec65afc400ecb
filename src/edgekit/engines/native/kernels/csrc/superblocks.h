/* Super-blocks of 256 weights: K-quants and ternary. */

/* 64 bytes of two-bit codes: 32 bytes hold four times 32 of them. */
ALWAYS void two_bits(const uint8_t *RESTRICT packed, uint8_t *RESTRICT codes)
{
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < 32; i++)
            codes[part * 32 + i] = packed[part / 4 * 32 + i] >> (part % 4 * 2) & 3;
}

/* 16 bytes with a scale below and a minimum above, 64 of two-bit codes, 2 d, 2 dmin. 16 weights
   share a scale. */
ALWAYS bool q2_k(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d, dmin;
    uint8_t codes[256];
    bool fine = two_halves(b + 80, &d, &dmin);
    two_bits(b + 16, codes);
    for (int part = 0; part < 16; part++) {
        float scale = d * (float)(b[part] & 15), minimum = dmin * (float)(b[part] >> 4);
        AS_VECTOR
        for (int i = 0; i < 16; i++)
            y[part * 16 + i] = scale * (float)codes[part * 16 + i] - minimum;
    }
    return fine;
}
UNPACK(q2_k, 84, 256)

/* Scale `part` of Q3_K's twelve bytes: a nibble of bytes 0..7, two bits of bytes 8..11; 32 means 0. */
ALWAYS int six_bit_scale(const uint8_t *packed, int part)
{
    int lower = packed[part % 8] >> (part / 8 * 4) & 15;
    int upper = packed[8 + part % 4] >> (part / 4 * 2) & 3;
    return (lower | upper << 4) - 32;
}

/* 16 parts of 16 weights, each with a scale of its own. */
ALWAYS void scale_parts(const int8_t *RESTRICT codes, const float *RESTRICT scales,
                        float *RESTRICT y)
{
    for (int part = 0; part < 16; part++)
        AS_VECTOR
        for (int i = 0; i < 16; i++)
            y[part * 16 + i] = scales[part] * (float)codes[part * 16 + i];
}

/* 32 bytes of third bits, 64 of two-bit codes, 12 of scales, 2 d. A third bit of 0 means -4. */
ALWAYS bool q3_k(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d, scales[16];
    uint8_t lower[256];
    int8_t codes[256];
    bool fine = one_half(b + 108, &d);
    two_bits(b + 32, lower);
    for (int bit = 0; bit < 8; bit++)
        for (int i = 0; i < 32; i++)
            codes[bit * 32 + i] = (int8_t)((lower[bit * 32 + i] | (b[i] >> bit & 1) << 2) - 4);
    for (int part = 0; part < 16; part++)
        scales[part] = d * (float)six_bit_scale(b + 96, part);
    scale_parts(codes, scales, y);
    return fine;
}
UNPACK(q3_k, 110, 256)

/* Scale and minimum `part` of the twelve bytes of Q4_K and Q5_K. Those below 4 have six bits of a
   byte each; those above have a nibble of bytes 8..11 and the two bits that the first ones leave. */
ALWAYS void scale_and_minimum(const uint8_t *packed, int part, float *scale, float *minimum)
{
    if (part < 4) {
        *scale = (float)(packed[part] & 63);
        *minimum = (float)(packed[part + 4] & 63);
    } else {
        *scale = (float)((packed[part + 4] & 15) | packed[part - 4] >> 6 << 4);
        *minimum = (float)(packed[part + 4] >> 4 | packed[part] >> 6 << 4);
    }
}

/* 2 d, 2 dmin, 12 bytes of scales, 128 of codes: 32 bytes hold twice 32 codes. */
ALWAYS bool q4_k(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d, dmin;
    bool fine = two_halves(b, &d, &dmin);
    for (int pair = 0; pair < 4; pair++) {
        const uint8_t *codes = b + 16 + pair * 32;
        float s0, m0, s1, m1;
        scale_and_minimum(b + 4, 2 * pair, &s0, &m0);
        scale_and_minimum(b + 4, 2 * pair + 1, &s1, &m1);
        s0 *= d, m0 *= dmin, s1 *= d, m1 *= dmin;
        for (int i = 0; i < 32; i++)
            y[pair * 64 + i] = s0 * (float)(codes[i] & 15) - m0;
        for (int i = 0; i < 32; i++)
            y[pair * 64 + 32 + i] = s1 * (float)(codes[i] >> 4) - m1;
    }
    return fine;
}
UNPACK(q4_k, 144, 256)

/* As Q4_K, with 32 bytes of fifth bits before the codes: bit 2 * pair, and the next, of each byte. */
ALWAYS bool q5_k(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d, dmin;
    bool fine = two_halves(b, &d, &dmin);
    const uint8_t *fifth = b + 16;
    for (int pair = 0; pair < 4; pair++) {
        const uint8_t *codes = b + 48 + pair * 32;
        float s0, m0, s1, m1;
        scale_and_minimum(b + 4, 2 * pair, &s0, &m0);
        scale_and_minimum(b + 4, 2 * pair + 1, &s1, &m1);
        s0 *= d, m0 *= dmin, s1 *= d, m1 *= dmin;
        for (int i = 0; i < 32; i++) {
            int code = (codes[i] & 15) | (fifth[i] >> (2 * pair) & 1) << 4;
            y[pair * 64 + i] = s0 * (float)code - m0;
        }
        for (int i = 0; i < 32; i++) {
            int code = codes[i] >> 4 | (fifth[i] >> (2 * pair + 1) & 1) << 4;
            y[pair * 64 + 32 + i] = s1 * (float)code - m1;
        }
    }
    return fine;
}
UNPACK(q5_k, 176, 256)

/* 128 bytes of lower halves, 64 of two upper bits, 16 signed scales, 2 d. Half a block has 64 bytes
   of lower halves: their nibbles, low then high, are its 128 weights; 32 means 0. */
ALWAYS bool q6_k(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d, scales[16];
    int8_t codes[256];
    bool fine = one_half(b + 208, &d);
    for (int half = 0; half < 2; half++) {
        const uint8_t *lower = b + half * 64, *upper = b + 128 + half * 32;
        int8_t *to = codes + half * 128;
        for (int i = 0; i < 32; i++) {
            to[i] = (int8_t)(((lower[i] & 15) | (upper[i] << 4 & 48)) - 32);
            to[i + 32] = (int8_t)(((lower[i + 32] & 15) | (upper[i] << 2 & 48)) - 32);
            to[i + 64] = (int8_t)((lower[i] >> 4 | (upper[i] & 48)) - 32);
            to[i + 96] = (int8_t)((lower[i + 32] >> 4 | (upper[i] >> 2 & 48)) - 32);
        }
    }
    AS_VECTOR
    for (int part = 0; part < 16; part++)
        scales[part] = d * (float)(int8_t)b[192 + part];
    scale_parts(codes, scales, y);
    return fine;
}
UNPACK(q6_k, 210, 256)

/* `width` bytes of `digits` digits in base three, as a fraction of 256: byte * 3^i, modulo 256, has
   digit i on top. */
ALWAYS float *base_three(const uint8_t *packed, int width, int digits, float d, float *y)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    for (int digit = 0; digit < digits; digit++)
        for (int i = 0; i < width; i++) {
            uint8_t rest = (uint8_t)(packed[i] * powers[digit]);
            *y++ = d * (float)((rest * 3 >> 8) - 1);
        }
    return y;
}

/* 48 bytes of five digits, 4 of four, 2 d. */
ALWAYS bool tq1_0(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b + 52, &d);
    y = base_three(b, 32, 5, d, y);
    y = base_three(b + 32, 16, 5, d, y);
    base_three(b + 48, 4, 4, d, y);
    return fine;
}
UNPACK(tq1_0, 54, 256)

/* 64 bytes of two-bit codes, 2 d; 1 means 0. */
ALWAYS bool tq2_0(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b + 64, &d);
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < 32; i++)
            y[part * 32 + i] = d * (float)((b[part / 4 * 32 + i] >> (part % 4 * 2) & 3) - 1);
    return fine;
}
UNPACK(tq2_0, 66, 256)
