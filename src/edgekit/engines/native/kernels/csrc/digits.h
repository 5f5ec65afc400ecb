/* A row of floats as whole numbers, for processors that add products of bytes: 32 floats share a
   scale, and each is three digits in base 256, so that it is as precise as a float. */
#if defined(DIGITS)

enum { GROUP = 32, LARGEST_DIGITS = 8355000 }; /* its first digit is 127, and it may still be rounded up */

/* What `split` writes: bytes of the first digits of a group, of the second, of the third; then scales,
   and sums of 16. */
static ptrdiff_t digits_floats(ptrdiff_t columns) { return columns / GROUP * (3 * GROUP / 4 + 3); }

static struct factors split(const float *x, ptrdiff_t columns, float *scratch)
{
    ptrdiff_t groups = columns / GROUP;
    int8_t *digits = (int8_t *)scratch;
    float *scales = scratch + groups * (3 * GROUP / 4), *sums = scales + groups;
    for (ptrdiff_t g = 0; g < groups; g++) {
        const float *from = x + g * GROUP;
        int8_t *to = digits + g * 3 * GROUP;
        float most = 0, half_sums[2] = {0, 0};
        uint32_t carries = 0; /* as in first_not_finite */
        for (int i = 0; i < GROUP; i++) {
            most = fabsf(from[i]) > most ? fabsf(from[i]) : most;
            carries |= (bits_of(from[i]) & 0x7f800000) + 0x00800000;
        }
        for (int i = 0; i < GROUP; i++)
            half_sums[i / 16] += from[i];
        bool is_finite = !(carries >> 31);
        /* A smaller number has no reciprocal; it is nothing beside any other. */
        float inverse = is_finite && most > 1e-30f ? LARGEST_DIGITS / most : 0;
        for (int i = 0; i < GROUP; i++) {
            int32_t whole = is_finite ? (int32_t)rintf(from[i] * inverse) : 0;
            int8_t third = (int8_t)whole;
            whole = (whole - third) >> 8;
            int8_t second = (int8_t)whole;
            to[i] = (int8_t)((whole - second) >> 8);
            to[GROUP + i] = second;
            to[2 * GROUP + i] = third;
        }
        scales[g] = is_finite ? (inverse > 0 ? most / LARGEST_DIGITS : 0) : NAN;
        sums[2 * g] = half_sums[0];
        sums[2 * g + 1] = half_sums[1];
    }
    return (struct factors){.x = x, .digits = digits, .scales = scales, .sums = sums};
}

/* The three sums of one product, times 1, 256 and 65,536. The first two are added as whole numbers,
   which are below 2^26. */
ALWAYS float32x4_t join(int32x4_t first, int32x4_t second, int32x4_t third)
{
    float32x4_t upper = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(first, 8), second));
    return vfmaq_n_f32(vcvtq_f32_s32(third), upper, 256.0f);
}

ALWAYS void add_digit_products(const int8_t *codes, const float *scales, const float *offsets,
                               const struct factors *row, ptrdiff_t first, vec *sums,
                               const int block_weights, const int part_weights)
{
    const int32x4_t none = vdupq_n_s32(0);
    float lower = 0;
    for (int i = 0; i < block_weights; i += GROUP) {
        ptrdiff_t group = (first + i) / GROUP;
        const int8_t *d = row->digits + group * 3 * GROUP;
        int8x16_t a = vld1q_s8(codes + i), b = vld1q_s8(codes + i + 16);
        int32x4_t sum_a[3], sum_b[3];
        UNROLL
        for (int digit = 0; digit < 3; digit++) {
            sum_a[digit] = vdotq_s32(none, a, vld1q_s8(d + digit * GROUP));
            sum_b[digit] = vdotq_s32(part_weights < GROUP ? none : sum_a[digit], b,
                                     vld1q_s8(d + digit * GROUP + 16));
        }
        const int part = i / part_weights, next = (i + 16) / part_weights;
        float scale = row->scales[group];
        if (part_weights < GROUP)
            sums[0] += (vec)vmulq_n_f32(join(sum_a[0], sum_a[1], sum_a[2]), scale * scales[part]);
        sums[1] += (vec)vmulq_n_f32(join(sum_b[0], sum_b[1], sum_b[2]), scale * scales[next]);
        if (offsets)
            lower += offsets[part] * row->sums[2 * group] + offsets[next] * row->sums[2 * group + 1];
    }
    sums[2] += (vec)vsetq_lane_f32(lower, vdupq_n_f32(0), 0);
}
#endif
