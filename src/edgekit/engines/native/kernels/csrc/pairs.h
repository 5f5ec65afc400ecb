/* Several tokens on processors that multiply matrices of bytes, 2 x 8 by 8 x 2: two rows of W by the
   two digits of a token. 32 floats of a token share a scale, and each is rounded to 16 bits. */
#if defined(PAIRS)

enum {
    PAIR_DEPTH = 512,  /* columns at a time: whole blocks of every type */
    PAIR_TOKENS = 32,  /* tokens at a time */
    LARGEST_PAIR = 32500, /* its first digit is 127, and it may still be rounded up */
    GROUPS = PAIR_DEPTH / GROUP,
    PARTS = PAIR_DEPTH / 16,
};

/* Of some tokens and PAIR_DEPTH columns. Digits: for each group four times eight first ones and
   eight second ones. */
struct tokens {
    int8_t digits[PAIR_TOKENS][GROUPS][2 * GROUP];
    float scales[PAIR_TOKENS][GROUPS], sums[PAIR_TOKENS][PARTS];
};

enum { TOKENS_FLOATS = sizeof(struct tokens) / sizeof(float) };

/* Two rows of W: eight codes of one, eight of the other, and what belongs to 16 of each. */
struct pair {
    int8_t codes[2 * PAIR_DEPTH];
    float scales[PARTS][4]; /* twice the first row's, twice the second's */
    float offsets[PARTS][2];
};

static void split_token(const float *x, ptrdiff_t columns, struct tokens *to, ptrdiff_t t)
{
    for (ptrdiff_t g = 0; g < columns / GROUP; g++) {
        const float *from = x + g * GROUP;
        int8_t *digits = to->digits[t][g];
        float most = 0, *sums = to->sums[t] + 2 * g;
        bool is_finite = first_not_finite(from, GROUP) < 0;
        sums[0] = sums[1] = 0;
        for (int i = 0; i < GROUP; i++) {
            most = fabsf(from[i]) > most ? fabsf(from[i]) : most;
            sums[i / 16] += from[i];
        }
        float inverse = is_finite && most > 1e-30f ? LARGEST_PAIR / most : 0;
        for (int i = 0; i < GROUP; i++) {
            int32_t whole = is_finite ? (int32_t)rintf(from[i] * inverse) : 0;
            int8_t second = (int8_t)whole;
            digits[i / 8 * 16 + i % 8] = (int8_t)((whole - second) >> 8);
            digits[i / 8 * 16 + 8 + i % 8] = second;
        }
        to->scales[t][g] = is_finite ? (inverse > 0 ? most / LARGEST_PAIR : 0) : NAN;
    }
}

/* Row `which` of a pair. -1, or the bad block. */
static ptrdiff_t read_row(const struct type *type, const uint8_t *source, ptrdiff_t columns, int which,
                          struct pair *pair, const struct codebooks *books)
{
    struct coded c;
    for (ptrdiff_t b = 0; b < columns / type->block_weights; b++) {
        if (!type->read(source + b * type->block_bytes, &c, books))
            return b;
        ptrdiff_t first = b * type->block_weights;
        for (int i = 0; i < type->block_weights; i += 8)
            memcpy(pair->codes + 2 * (first + i) + 8 * which, c.codes + i, 8);
        for (int i = 0; i < type->block_weights; i += 16) {
            float *scales = pair->scales[(first + i) / 16];
            scales[2 * which] = scales[2 * which + 1] = c.scales[i / type->part_weights];
            pair->offsets[(first + i) / 16][which] =
                type->has_offsets ? c.offsets[i / type->part_weights] : 0;
        }
    }
    return -1;
}

/* The products of both rows and one token, less those of the offsets. */
ALWAYS float32x4_t pair_products(const struct pair *pair, const struct tokens *x, ptrdiff_t t,
                                 ptrdiff_t groups, const bool small_parts)
{
    const int32x4_t none = vdupq_n_s32(0);
    float32x4_t sums = vdupq_n_f32(0);
    for (ptrdiff_t g = 0; g < groups; g++) {
        const int8_t *codes = pair->codes + 2 * GROUP * g, *digits = x->digits[t][g];
        int32x4_t lower = none, upper;
        lower = vmmlaq_s32(lower, vld1q_s8(codes), vld1q_s8(digits));
        lower = vmmlaq_s32(lower, vld1q_s8(codes + 16), vld1q_s8(digits + 16));
        upper = small_parts ? none : lower;
        upper = vmmlaq_s32(upper, vld1q_s8(codes + 32), vld1q_s8(digits + 32));
        upper = vmmlaq_s32(upper, vld1q_s8(codes + 48), vld1q_s8(digits + 48));
        float scale = x->scales[t][g];
        if (small_parts)
            sums = vfmaq_f32(sums, vcvtq_f32_s32(lower),
                             vmulq_n_f32(vld1q_f32(pair->scales[2 * g]), scale));
        sums = vfmaq_f32(sums, vcvtq_f32_s32(upper),
                         vmulq_n_f32(vld1q_f32(pair->scales[2 * g + 1]), scale));
    }
    return sums;
}

/* Adds both rows' products with some tokens to out; `rows` is 1 or 2. */
static void multiply_pair(const struct pair *pair, const struct type *type, const struct tokens *x,
                          ptrdiff_t tokens, ptrdiff_t columns, float *out, ptrdiff_t out_stride, int rows)
{
    for (ptrdiff_t t = 0; t < tokens; t++) {
        float32x4_t both = type->part_weights < GROUP
                               ? pair_products(pair, x, t, columns / GROUP, true)
                               : pair_products(pair, x, t, columns / GROUP, false);
        float digits[4], lower[2] = {0, 0};
        vst1q_f32(digits, both);
        for (ptrdiff_t p = 0; type->has_offsets && p < columns / 16; p++)
            for (int row = 0; row < 2; row++)
                lower[row] += pair->offsets[p][row] * x->sums[t][p];
        for (int row = 0; row < rows; row++)
            out[t * out_stride + row] += 256 * digits[2 * row] + digits[2 * row + 1] + lower[row];
    }
}

static ptrdiff_t multiply_pairs(const struct type *type, const uint8_t *weights, struct matrix x,
                                struct matrix out, float *scratch, const struct codebooks *books)
{
    struct tokens *tokens = (struct tokens *)scratch;
    struct pair pair;
    ptrdiff_t row_blocks = x.columns / type->block_weights;
    for (ptrdiff_t t = 0; t < x.rows; t += PAIR_TOKENS) {
        ptrdiff_t count = least(x.rows - t, PAIR_TOKENS);
        for (ptrdiff_t column = 0; column < x.columns; column += PAIR_DEPTH) {
            ptrdiff_t depth = least(x.columns - column, PAIR_DEPTH);
            for (ptrdiff_t i = 0; i < count; i++)
                split_token(x.data + (t + i) * x.stride + column, depth, tokens, i);
            for (ptrdiff_t row = 0; row < out.columns; row += 2) {
                int rows = row + 1 < out.columns ? 2 : 1;
                for (int which = 0; which < 2; which++) { /* a last row is its own partner */
                    ptrdiff_t block = (row + (which < rows ? which : 0)) * row_blocks +
                                      column / type->block_weights;
                    ptrdiff_t bad = read_row(type, weights + block * type->block_bytes, depth, which,
                                             &pair, books);
                    if (bad >= 0)
                        return block + bad;
                }
                multiply_pair(&pair, type, tokens, count, depth, out.data + t * out.stride + row,
                              out.stride, rows);
            }
        }
    }
    return -1;
}
#endif
