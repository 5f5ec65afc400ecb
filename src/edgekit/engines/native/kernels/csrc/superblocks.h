/* Super-blocks of 256 weights: K-quants and ternary. */

/* 64 bytes of two-bit codes: 32 bytes hold four times 32 of them. */
ALWAYS void two_bits(const uint8_t *RESTRICT packed, int8_t *RESTRICT codes)
{
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < 32; i++)
            codes[part * 32 + i] = packed[part / 4 * 32 + i] >> (part % 4 * 2) & 3;
}

/* 16 bytes with a scale below and a minimum above, 64 of two-bit codes, 2 d, 2 dmin. 16 weights
   share a scale. */
ALWAYS bool q2_k(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    float d, dmin;
    bool fine = two_halves(b + 80, &d, &dmin);
    two_bits(b + 16, to->codes);
    for (int part = 0; part < 16; part++) {
        to->scales[part] = d * (float)(b[part] & 15);
        to->offsets[part] = -dmin * (float)(b[part] >> 4);
    }
    return fine;
}
CODED(q2_k, 84, 256, 16, true)

/* Scale `part` of Q3_K's twelve bytes: a nibble of bytes 0..7, two bits of bytes 8..11; 32 means 0. */
ALWAYS int six_bit_scale(const uint8_t *packed, int part)
{
    int lower = packed[part % 8] >> (part / 8 * 4) & 15;
    int upper = packed[8 + part % 4] >> (part / 4 * 2) & 3;
    return (lower | upper << 4) - 32;
}

/* 32 bytes of third bits, 64 of two-bit codes, 12 of scales, 2 d. A third bit of 0 means -4. */
ALWAYS bool q3_k(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b + 108, &d);
    int8_t lower[256];
    two_bits(b + 32, lower);
    for (int bit = 0; bit < 8; bit++)
        for (int i = 0; i < 32; i++)
            to->codes[bit * 32 + i] = (int8_t)((lower[bit * 32 + i] | (b[i] >> bit & 1) << 2) - 4);
    for (int part = 0; part < 16; part++)
        to->scales[part] = d * (float)six_bit_scale(b + 96, part);
    return fine;
}
CODED(q3_k, 110, 256, 16, false)

/* The scales and minimums of Q4_K and Q5_K, eight of each in twelve bytes. Those below 4 have six
   bits of a byte each; those above have a nibble of the last four bytes and the two bits that the
   first ones leave. */
ALWAYS bool scales_and_minimums(const uint8_t *b, struct coded *to)
{
    float d, dmin;
    bool fine = two_halves(b, &d, &dmin);
    uint32_t first = u32_at(b + 4), second = u32_at(b + 8), third = u32_at(b + 12);
    uint32_t words[4] = {
        first & 0x3f3f3f3f,
        (third & 0x0f0f0f0f) | (first >> 2 & 0x30303030),
        second & 0x3f3f3f3f,
        (third >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030),
    };
    uint8_t six_bits[16];
    memcpy(six_bits, words, sizeof six_bits);
#if LANES == 16
    float factors[16];
    for (int i = 0; i < 16; i++)
        factors[i] = i < 8 ? d : -dmin;
    store(to->scales, codes(six_bits) * load(factors));
    memcpy(to->offsets, to->scales + 8, 32);
#else
    for (int i = 0; i < 8; i += LANES) {
        store(to->scales + i, codes(six_bits + i) * splat(d));
        store(to->offsets + i, codes(six_bits + 8 + i) * splat(-dmin));
    }
#endif
    return fine;
}

/* 2 d, 2 dmin, 12 bytes of scales, 128 of codes: 32 bytes hold twice 32 codes. */
ALWAYS bool q4_k(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    for (int pair = 0; pair < 4; pair++)
        for (int i = 0; i < 32; i++) {
            uint8_t two = b[16 + pair * 32 + i];
            to->codes[pair * 64 + i] = two & 15;
            to->codes[pair * 64 + 32 + i] = two >> 4;
        }
    return scales_and_minimums(b, to);
}
CODED(q4_k, 144, 256, 32, true)

/* As Q4_K, with 32 bytes of fifth bits before the codes: bit 2 * pair, and the next, of each byte. */
ALWAYS bool q5_k(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    const uint8_t *fifth = b + 16;
    for (int pair = 0; pair < 4; pair++)
        for (int i = 0; i < 32; i++) {
            uint8_t two = b[48 + pair * 32 + i], bits = fifth[i] >> (2 * pair);
            to->codes[pair * 64 + i] = (int8_t)((two & 15) | (bits & 1) << 4);
            to->codes[pair * 64 + 32 + i] = (int8_t)(two >> 4 | (bits & 2) << 3);
        }
    return scales_and_minimums(b, to);
}
CODED(q5_k, 176, 256, 32, true)

/* 128 bytes of lower halves, 64 of two upper bits, 16 signed scales, 2 d. Half a block has 64 bytes
   of lower halves: their nibbles, low then high, are its 128 weights; 32 means 0. */
ALWAYS bool q6_k(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b + 208, &d);
    for (int half = 0; half < 2; half++) {
        const uint8_t *lower = b + half * 64, *upper = b + 128 + half * 32;
        int8_t *codes = to->codes + half * 128;
        for (int i = 0; i < 32; i++) {
            codes[i] = (int8_t)(((lower[i] & 15) | (upper[i] << 4 & 48)) - 32);
            codes[i + 32] = (int8_t)(((lower[i + 32] & 15) | (upper[i] << 2 & 48)) - 32);
            codes[i + 64] = (int8_t)((lower[i] >> 4 | (upper[i] & 48)) - 32);
            codes[i + 96] = (int8_t)((lower[i + 32] >> 4 | (upper[i] >> 2 & 48)) - 32);
        }
    }
    for (int part = 0; part < 16; part++)
        to->scales[part] = d * (float)(int8_t)b[192 + part];
    return fine;
}
CODED(q6_k, 210, 256, 16, false)

/* `width` bytes of `digits` digits in base three, as a fraction of 256: byte * 3^i, modulo 256, has
   digit i on top. */
ALWAYS int8_t *base_three(const uint8_t *RESTRICT packed, int width, int digits, int8_t *RESTRICT codes)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    for (int digit = 0; digit < digits; digit++)
        for (int i = 0; i < width; i++) {
            uint8_t rest = (uint8_t)(packed[i] * powers[digit]);
            *codes++ = (int8_t)((rest * 3 >> 8) - 1);
        }
    return codes;
}

/* 48 bytes of five digits, 4 of four, 2 d. */
ALWAYS bool tq1_0(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    int8_t *codes = base_three(b, 32, 5, to->codes);
    codes = base_three(b + 32, 16, 5, codes);
    base_three(b + 48, 4, 4, codes);
    return one_half(b + 52, to->scales);
}
CODED(tq1_0, 54, 256, 256, false)

/* 64 bytes of two-bit codes, 2 d; 1 means 0. */
ALWAYS bool tq2_0(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    two_bits(b, to->codes);
    for (int i = 0; i < 256; i++)
        to->codes[i] -= 1;
    return one_half(b + 64, to->scales);
}
CODED(tq2_0, 66, 256, 256, false)
