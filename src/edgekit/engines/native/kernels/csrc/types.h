/* The types that can be unpacked: GGML's id, weights and bytes of a block, whether it needs codebooks. */
#if defined(PAIRS)
#define CODES_OF(name) read_##name, name##_part, name##_offsets
#else
#define CODES_OF(name) NULL, 0, false
#endif
#define PLAIN(id, bytes, name) {id, 1, bytes, false, unpack_##name, dot_##name, NULL, 0, false}
#define CODED_TYPE(id, weights, bytes, needs_codebooks, name)                                      \
    {id, weights, bytes, needs_codebooks, unpack_##name, dot_##name, CODES_OF(name)}
#define FLOATS(id, weights, bytes, needs_codebooks, name)                                          \
    {id, weights, bytes, needs_codebooks, unpack_##name, NULL, NULL, 0, false}

static const struct type TYPES[] = {
    PLAIN(0, 4, f32),
    PLAIN(1, 2, f16),
    PLAIN(30, 2, bf16),
    CODED_TYPE(2, 32, 18, false, q4_0),
    CODED_TYPE(3, 32, 20, false, q4_1),
    CODED_TYPE(6, 32, 22, false, q5_0),
    CODED_TYPE(7, 32, 24, false, q5_1),
    CODED_TYPE(8, 32, 34, false, q8_0),
    CODED_TYPE(10, 256, 84, false, q2_k),
    CODED_TYPE(11, 256, 110, false, q3_k),
    CODED_TYPE(12, 256, 144, false, q4_k),
    CODED_TYPE(13, 256, 176, false, q5_k),
    CODED_TYPE(14, 256, 210, false, q6_k),
    CODED_TYPE(16, 256, 66, true, iq2_xxs),
    CODED_TYPE(17, 256, 74, true, iq2_xs),
    CODED_TYPE(18, 256, 98, true, iq3_xxs),
    FLOATS(19, 256, 50, true, iq1_s),
    CODED_TYPE(20, 32, 18, false, iq4_nl),
    CODED_TYPE(21, 256, 110, true, iq3_s),
    CODED_TYPE(22, 256, 82, true, iq2_s),
    CODED_TYPE(23, 256, 136, false, iq4_xs),
    FLOATS(29, 256, 56, true, iq1_m),
    CODED_TYPE(34, 256, 54, false, tq1_0),
    CODED_TYPE(35, 256, 66, false, tq2_0),
    CODED_TYPE(39, 32, 17, false, mxfp4),
};
