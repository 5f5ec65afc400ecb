/* The types that can be unpacked: GGML's id, weights and bytes of a block. */
static const struct type TYPES[] = {
    {0, 1, 4, false, unpack_f32},           {1, 1, 2, false, unpack_f16},
    {30, 1, 2, false, unpack_bf16},         {2, 32, 18, false, unpack_q4_0},
    {3, 32, 20, false, unpack_q4_1},        {6, 32, 22, false, unpack_q5_0},
    {7, 32, 24, false, unpack_q5_1},        {8, 32, 34, false, unpack_q8_0},
    {10, 256, 84, false, unpack_q2_k},      {11, 256, 110, false, unpack_q3_k},
    {12, 256, 144, false, unpack_q4_k},     {13, 256, 176, false, unpack_q5_k},
    {14, 256, 210, false, unpack_q6_k},     {16, 256, 66, true, unpack_iq2_xxs},
    {17, 256, 74, true, unpack_iq2_xs},     {18, 256, 98, true, unpack_iq3_xxs},
    {19, 256, 50, true, unpack_iq1_s},      {20, 32, 18, false, unpack_iq4_nl},
    {21, 256, 110, true, unpack_iq3_s},     {22, 256, 82, true, unpack_iq2_s},
    {23, 256, 136, false, unpack_iq4_xs},   {29, 256, 56, true, unpack_iq1_m},
    {34, 256, 54, false, unpack_tq1_0},     {35, 256, 66, false, unpack_tq2_0},
    {39, 32, 17, false, unpack_mxfp4},
};
