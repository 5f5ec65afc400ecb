/* A vector of LANES floats, and the few things done with it. With LANES 1 it is a float. */

#if defined(__GNUC__)
#define ALWAYS static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("GCC unroll 16")
#define AS_VECTOR _Pragma("GCC unroll 1") /* GCC unrolls short loops, and then sees no vector */
#define RESTRICT __restrict__
#define PREFETCH(address) __builtin_prefetch(address) /* of any memory, or none: it cannot fail */
#else
#define ALWAYS static __forceinline
#define UNROLL
#define AS_VECTOR
#define RESTRICT __restrict
#define PREFETCH(address) (void)(address)
#endif

#if LANES > 1
typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t words __attribute__((vector_size(LANES * 4)));
typedef float loose_vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

ALWAYS vec load(const float *from) { return *(const loose_vec *)from; }
ALWAYS void store(float *to, vec value) { *(loose_vec *)to = value; }
ALWAYS vec splat(float value) { return value - (vec){0}; }

#else
typedef float vec;
ALWAYS vec load(const float *from) { return *from; }
ALWAYS void store(float *to, vec value) { *to = value; }
ALWAYS vec splat(float value) { return value; }
#endif

/* The larger number, lane by lane. */
ALWAYS vec larger(vec a, vec b)
{
    float x[LANES], y[LANES];
    store(x, a), store(y, b);
    for (int i = 0; i < LANES; i++)
        x[i] = x[i] > y[i] ? x[i] : y[i];
    return load(x);
}

/* The sum of a vector's lanes, in pairs. */
ALWAYS float total(vec value)
{
    float part[LANES];
    store(part, value);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

ALWAYS uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

ALWAYS float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

ALWAYS ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
