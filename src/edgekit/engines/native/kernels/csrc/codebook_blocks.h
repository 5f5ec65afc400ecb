/* Super-blocks whose codes are points of a codebook: the IQ types. */

/* Eight signs in seven bits: the number of minus signs is even. */
ALWAYS uint32_t sign_bits(uint32_t code)
{
    uint32_t odd = code ^ code >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return code | (odd & 1) << 7;
}

/* The codes of a point, with a minus where the sign bit is set. */
ALWAYS void signed_point(const int8_t *point, int width, uint32_t signs, int8_t *codes)
{
    for (int i = 0; i < width; i++)
        codes[i] = (int8_t)(point[i] * (1 - 2 * (int)(signs >> i & 1)));
}

/* 2 d, 8 times: 4 bytes of codes, a word of four times seven signs and a scale. */
ALWAYS bool iq2_xxs(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    float d;
    bool fine = one_half(b, &d);
    for (int part = 0; part < 8; part++) {
        const uint8_t *codes = b + 2 + part * 8;
        uint32_t word = u32_at(codes + 4);
        to->scales[part] = d * (0.5f + (float)(word >> 28)) * 0.25f;
        for (int i = 0; i < 4; i++)
            signed_point(books->iq2_xxs + 8 * codes[i], 8, sign_bits(word >> (7 * i) & 127),
                         to->codes + part * 32 + i * 8);
    }
    return fine;
}
CODED(iq2_xxs, 66, 256, 32, false)

/* 16 scales of 16 weights each, in nibbles. */
ALWAYS void nibble_scales(const uint8_t *packed, float d, float *scales)
{
    for (int part = 0; part < 16; part++)
        scales[part] = d * (0.5f + (float)(packed[part / 2] >> (part % 2 * 4) & 15)) * 0.25f;
}

/* 2 d, 32 words of nine bits of code and seven signs, 8 bytes of two scales. */
ALWAYS bool iq2_xs(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    float d;
    bool fine = one_half(b, &d);
    nibble_scales(b + 66, d, to->scales);
    for (int i = 0; i < 32; i++) {
        uint32_t word = u16_at(b + 2 + 2 * i);
        signed_point(books->iq2_xs + 8 * (word & 511), 8, sign_bits(word >> 9), to->codes + i * 8);
    }
    return fine;
}
CODED(iq2_xs, 74, 256, 16, false)

/* 2 d, 32 bytes of codes, 32 of signs, 8 of two bits more of the codes, 8 of two scales. */
ALWAYS bool iq2_s(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    float d;
    bool fine = one_half(b, &d);
    nibble_scales(b + 74, d, to->scales);
    for (int i = 0; i < 32; i++) {
        int code = b[2 + i] | (b[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
        signed_point(books->iq2_s + 8 * code, 8, b[34 + i], to->codes + i * 8);
    }
    return fine;
}
CODED(iq2_s, 82, 256, 16, false)

/* 2 d, 64 bytes of codes, 8 words of four times seven signs and a scale. */
ALWAYS bool iq3_xxs(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    float d;
    bool fine = one_half(b, &d);
    for (int part = 0; part < 8; part++) {
        uint32_t word = u32_at(b + 66 + part * 4);
        to->scales[part] = d * (0.5f + (float)(word >> 28)) * 0.5f;
        for (int i = 0; i < 8; i++) {
            uint32_t signs = sign_bits(word >> (i / 2 * 7) & 127) >> (i % 2 * 4);
            signed_point(books->iq3_xxs + 4 * b[2 + part * 8 + i], 4, signs,
                         to->codes + part * 32 + i * 4);
        }
    }
    return fine;
}
CODED(iq3_xxs, 98, 256, 32, false)

/* 2 d, 64 bytes of codes, 8 of ninth bits, 32 of signs, 4 of two scales. */
ALWAYS bool iq3_s(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    float d;
    bool fine = one_half(b, &d);
    for (int part = 0; part < 8; part++)
        to->scales[part] = d * (float)(1 + 2 * (b[106 + part / 2] >> (part % 2 * 4) & 15));
    for (int i = 0; i < 64; i++) {
        int code = b[2 + i] | (b[66 + i / 8] >> (i % 8) & 1) << 8;
        uint32_t signs = (uint32_t)b[74 + i / 2] >> (i % 2 * 4);
        signed_point(books->iq3_s + 4 * code, 4, signs, to->codes + i * 4);
    }
    return fine;
}
CODED(iq3_s, 110, 256, 32, false)

ALWAYS void shifted_point(const int8_t *point, float scale, float delta, float *y)
{
    AS_VECTOR
    for (int i = 0; i < 8; i++)
        y[i] = scale * ((float)point[i] + delta);
}

/* 2 d, 32 bytes of codes, 8 words: four times three bits of codes, a scale, the delta's sign. */
ALWAYS bool iq1_s(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    float d;
    bool fine = one_half(b, &d);
    for (int i = 0; i < 32; i++) {
        uint32_t word = u16_at(b + 34 + i / 4 * 2);
        float scale = d * (float)(2 * (word >> 12 & 7) + 1);
        uint32_t code = b[2 + i] | (word >> (i % 4 * 3) & 7) << 8;
        shifted_point(books->iq1_s + 8 * code, scale, word & 0x8000 ? -0.125f : 0.125f, y + i * 8);
    }
    return fine;
}
UNPACK(iq1_s, 50, 256)

/* 32 bytes of codes, 16 with nibbles of three bits of a code and the delta's sign, 4 words of four
   times three bits of scale, and four bits of d on top. */
ALWAYS bool iq1_m(const uint8_t *RESTRICT b, float *RESTRICT y, const struct codebooks *books)
{
    uint32_t half = 0;
    for (int i = 0; i < 4; i++)
        half |= (uint32_t)(u16_at(b + 48 + 2 * i) >> 12) << (4 * i);
    float d = half_to_float(half);
    for (int i = 0; i < 32; i++) {
        uint32_t nibble = b[32 + i / 2] >> (i % 2 * 4) & 15;
        uint32_t word = u16_at(b + 48 + i / 8 * 2);
        float scale = d * (float)(2 * (word >> (i / 2 % 4 * 3) & 7) + 1);
        uint32_t code = b[i] | (nibble & 7) << 8;
        shifted_point(books->iq1_s + 8 * code, scale, nibble & 8 ? -0.125f : 0.125f, y + i * 8);
    }
    return half_is_finite(half);
}
UNPACK(iq1_m, 56, 256)

/* 2 d, 2 bytes of eight times two upper bits of a scale, 4 of two lower halves, 128 of nibbles. */
ALWAYS bool iq4_xs(const uint8_t *RESTRICT b, struct coded *RESTRICT to, const struct codebooks *books)
{
    (void)books;
    float d;
    bool fine = one_half(b, &d);
    for (int part = 0; part < 8; part++) {
        int lower = b[4 + part / 2] >> (part % 2 * 4) & 15;
        int upper = b[2 + part / 4] >> (part % 4 * 2) & 3;
        to->scales[part] = d * (float)((lower | upper << 4) - 32);
        look_up(b + 8 + part * 16, UNEVEN, to->codes + part * 32);
    }
    return fine;
}
CODED(iq4_xs, 136, 256, 32, false)
