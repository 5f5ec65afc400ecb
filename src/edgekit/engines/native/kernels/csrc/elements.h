/* Norms, activations and rotary positions: what is done with each row or each number. */

/* Within 2 ulp of exp on [-87, 88], outside of it the value at the end. 2^n is made of bits. */
ALWAYS float exponential(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: what is below 1 falls off */
    n -= 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * float_of((uint32_t)((int32_t)n + 127) << 23);
}

/* erf(x) ~ x P(x^2) / Q(x^2) on [-4, 4], which is 1 to float32 outside; within 4e-7. */
ALWAYS float error_function(float x)
{
    x = x < -4.0f ? -4.0f : x;
    x = x > 4.0f ? 4.0f : x;
    float s = x * x;
    float p = -2.72614225801306e-10f;
    p = p * s + 2.77068142495902e-08f;
    p = p * s - 2.10102402082508e-06f;
    p = p * s - 5.69250639462346e-05f;
    p = p * s - 7.34990630326855e-04f;
    p = p * s - 2.95459980854025e-03f;
    p = p * s - 1.60960333262415e-02f;
    float q = -1.45660718464996e-05f;
    q = q * s - 2.13374055278905e-04f;
    q = q * s - 1.68282697438203e-03f;
    q = q * s - 7.37332916720468e-03f;
    q = q * s - 1.42647390514189e-02f;
    return x * p / q;
}

ALWAYS float gelu(float x) { return 0.5f * x * (1.0f + error_function(x * 0.70710678f)); }

ALWAYS float silu(float x) { return x / (1.0f + exponential(-x)); }

/* (1 + tanh z) / 2 is 1 / (1 + exp -2z), z = sqrt(2 / pi) (x + 0.044715 x^3). */
ALWAYS float gelu_tanh(float x)
{
    return x / (1.0f + exponential(-1.59576912f * x * (1.0f + 0.044715f * x * x)));
}

#define ACTIVATE_ROW(function)                                                                     \
    static void function##_row(float *x, ptrdiff_t count)                                          \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < count; i++)                                                      \
            x[i] = function(x[i]);                                                                 \
    }                                                                                              \
    static void function##_gate_row(float *RESTRICT x, const float *RESTRICT up, ptrdiff_t count)  \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < count; i++)                                                      \
            x[i] = function(x[i]) * up[i];                                                         \
    }
ACTIVATE_ROW(gelu)
ACTIVATE_ROW(gelu_tanh)
ACTIVATE_ROW(silu)

static void activate(struct matrix x, enum activation kind)
{
    void (*row)(float *, ptrdiff_t) = kind == GELU ? gelu_row : kind == SILU ? silu_row : gelu_tanh_row;
    for (ptrdiff_t i = 0; i < x.rows; i++)
        row(x.data + i * x.stride, x.columns);
}

static void gate_by(struct matrix gate, struct matrix up, enum activation kind)
{
    void (*row)(float *, const float *, ptrdiff_t) = kind == GELU   ? gelu_gate_row
                                                     : kind == SILU ? silu_gate_row
                                                                    : gelu_tanh_gate_row;
    for (ptrdiff_t i = 0; i < gate.rows; i++)
        row(gate.data + i * gate.stride, up.data + i * up.stride, gate.columns);
}

static float sum_of(const float *x, ptrdiff_t count)
{
    vec sums = splat(0);
    ptrdiff_t i = 0;
    for (; i + LANES <= count; i += LANES)
        sums += load(x + i);
    float sum = total(sums);
    for (; i < count; i++)
        sum += x[i];
    return sum;
}

static float most_of(const float *x, ptrdiff_t count)
{
    float most = x[0];
    ptrdiff_t i = 0;
    if (count >= LANES) {
        vec largest = load(x);
        for (i = LANES; i + LANES <= count; i += LANES)
            largest = larger(load(x + i), largest);
        float lanes[LANES];
        store(lanes, largest);
        for (int lane = 0; lane < LANES; lane++)
            most = lanes[lane] > most ? lanes[lane] : most;
    }
    for (; i < count; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Of the distances from `centre`. */
static float squares_of(const float *x, ptrdiff_t count, float centre)
{
    vec sums = splat(0), middle = splat(centre);
    ptrdiff_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec away = load(x + i) - middle;
        sums += away * away;
    }
    float sum = total(sums);
    for (; i < count; i++)
        sum += (x[i] - centre) * (x[i] - centre);
    return sum;
}

static void layer_norm(struct matrix x, struct matrix out, const float *weight, const float *bias,
                       float eps)
{
    for (ptrdiff_t row = 0; row < x.rows; row++) {
        const float *from = x.data + row * x.stride;
        float *to = out.data + row * out.stride;
        float mean = sum_of(from, x.columns) / (float)x.columns;
        float variance = squares_of(from, x.columns, mean) / (float)x.columns;
        float scale = 1.0f / sqrtf(variance + eps);
        for (ptrdiff_t i = 0; i < x.columns; i++)
            to[i] = (from[i] - mean) * scale * weight[i];
        for (ptrdiff_t i = 0; bias && i < x.columns; i++)
            to[i] += bias[i];
    }
}

static void rms_norm(struct matrix x, struct matrix out, const float *weight, float eps)
{
    for (ptrdiff_t row = 0; row < x.rows; row++) {
        const float *from = x.data + row * x.stride;
        float *to = out.data + row * out.stride;
        float scale = 1.0f / sqrtf(squares_of(from, x.columns, 0) / (float)x.columns + eps);
        for (ptrdiff_t i = 0; i < x.columns; i++)
            to[i] = from[i] * scale * weight[i];
    }
}

/* Values `step` apart turn together; the pairs lie `stride` apart. */
ALWAYS void turn_head(float *x, const float *cos, const float *sin, ptrdiff_t half, ptrdiff_t step,
                      ptrdiff_t stride)
{
    for (ptrdiff_t i = 0; i < half; i++) {
        float a = x[i * stride], b = x[i * stride + step];
        x[i * stride] = a * cos[i] - b * sin[i];
        x[i * stride + step] = b * cos[i] + a * sin[i];
    }
}

static void rope(struct matrix x, struct matrix cos, struct matrix sin, ptrdiff_t heads,
                 ptrdiff_t head_dim, bool neox)
{
    for (ptrdiff_t row = 0; row < x.rows; row++)
        for (ptrdiff_t head = 0; head < heads; head++) {
            float *at = x.data + row * x.stride + head * head_dim;
            const float *c = cos.data + row * cos.stride, *s = sin.data + row * sin.stride;
            if (neox)
                turn_head(at, c, s, cos.columns, cos.columns, 1);
            else
                turn_head(at, c, s, cos.columns, 1, 2);
        }
}
