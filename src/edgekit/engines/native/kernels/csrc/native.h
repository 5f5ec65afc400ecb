/* What the variants of the kernels and the Python module share. */
#ifndef EDGEKIT_NATIVE_H
#define EDGEKIT_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF's weights are little-endian; this machine is served by the numpy kernels"
#endif

/* Rows of floats; `stride` floats from one row to the next. */
struct matrix {
    float *data;
    ptrdiff_t rows, columns, stride;
};

/* The codebooks of the IQ types: points of 4 or 8 signed bytes, as codebooks.py lays them out. */
struct codebooks {
    int8_t iq2_xxs[256 * 8];
    int8_t iq2_xs[512 * 8];
    int8_t iq2_s[1024 * 8];
    int8_t iq3_xxs[256 * 4];
    int8_t iq3_s[512 * 4];
    int8_t iq1_s[2048 * 8];
};

/* Unpacks whole blocks. -1, or the first block with a scale that is not finite. */
typedef ptrdiff_t unpack_function(const uint8_t *source, ptrdiff_t blocks, float *out,
                                  const struct codebooks *books);

/* One row of floats, and what a variant has made of it to multiply faster (digits.h). */
struct factors {
    const float *x;
    const int8_t *digits;
    const float *scales, *sums;
};

/* The dot product of whole blocks with such a row. -1, or the first bad block, as above. */
typedef ptrdiff_t dot_function(const uint8_t *source, ptrdiff_t blocks, const struct factors *row,
                               const struct codebooks *books, float *out);

/* Reads one block of codes. False if a scale is not finite. */
struct coded;
typedef bool read_function(const uint8_t *block, struct coded *to, const struct codebooks *books);

struct type {
    int ggml_id;
    int block_weights;
    int block_bytes;
    bool needs_codebooks;
    unpack_function *unpack;
    dot_function *dot;   /* NULL: unpack, then multiply */
    read_function *read; /* NULL: it has no codes, or the variant has no use for them */
    int part_weights;
    bool has_offsets;
};

struct attention {
    struct matrix q, k, v, out;
    ptrdiff_t heads, kv_heads, head_dim;
    float scale;
    bool causal;
    const float *slopes; /* one for each head, or NULL */
    float *scratch;
};

/* How numbers lie in a cache: plain, or in blocks of 32 with a half as their scale. */
enum cache_kind { CACHE_F32, CACHE_F16, CACHE_Q8_0, CACHE_KINDS };

/* Consecutive cells of a cache, and the queries that look at them. */
struct span {
    struct matrix q, out;
    float *state; /* of each query and head: the largest score, the sum of shares */
    const uint8_t *k, *v;
    enum cache_kind k_kind, v_kind;
    ptrdiff_t heads, kv_heads, head_dim, cells;
    ptrdiff_t ahead; /* query 0 stands so many positions after cell 0 */
    ptrdiff_t reach; /* a query sees itself and reach - 1 positions before */
    float scale;
    float *scratch;
};

enum activation { GELU, GELU_TANH, SILU };

/* One set of kernels, made for one kind of processor. All sizes were checked by the caller. */
struct variant {
    const char *name;
    const struct type *types;
    int type_count;
    ptrdiff_t (*scratch_floats)(ptrdiff_t columns);
    ptrdiff_t static_bytes;
    ptrdiff_t (*multiply)(const struct type *type, const uint8_t *weights, struct matrix x,
                          struct matrix out, float *scratch, const struct codebooks *books);
    ptrdiff_t (*attention_floats)(ptrdiff_t tokens, ptrdiff_t head_dim);
    void (*attend)(const struct attention *task, ptrdiff_t start, ptrdiff_t end, ptrdiff_t head);
    ptrdiff_t (*store)(enum cache_kind kind, struct matrix x, uint8_t *into);
    ptrdiff_t (*span_floats)(ptrdiff_t head_dim);
    void (*attend_span)(const struct span *span, ptrdiff_t first, ptrdiff_t last);
    void (*settle)(struct matrix out, const float *state, ptrdiff_t heads, ptrdiff_t head_dim);
    void (*layer_norm)(struct matrix x, struct matrix out, const float *weight, const float *bias,
                       float eps);
    void (*rms_norm)(struct matrix x, struct matrix out, const float *weight, float eps);
    void (*activate)(struct matrix x, enum activation kind);
    void (*gate)(struct matrix gate, struct matrix up, enum activation kind);
    void (*rope)(struct matrix x, struct matrix cos, struct matrix sin, ptrdiff_t heads,
                 ptrdiff_t head_dim, bool neox);
};

/* Bytes of so many numbers, or -1 where they are not whole blocks. */
static inline ptrdiff_t cache_bytes(enum cache_kind kind, ptrdiff_t numbers)
{
    if (kind == CACHE_Q8_0)
        return numbers % 32 ? -1 : numbers / 32 * 34;
    return numbers * (kind == CACHE_F16 ? 2 : 4);
}

extern const struct variant edgekit_plain;

/* The variants that this processor can run, the best last; how many they are. */
enum { MOST_VARIANTS = 3 };
int edgekit_variants(const struct variant *found[MOST_VARIANTS]);

/* GCC and Clang compile a function for a newer processor than the one they compile for. For ARM older
   ones lack the functions. */
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define EDGEKIT_X86_VARIANTS 1
extern const struct variant edgekit_avx2;
extern const struct variant edgekit_avx512;
#elif defined(__aarch64__) && defined(__GNUC__) &&                                                 \
    ((defined(__clang__) && __clang_major__ >= 17) || (!defined(__clang__) && __GNUC__ >= 10))
#define EDGEKIT_ARM_VARIANTS 1
extern const struct variant edgekit_dotprod;
extern const struct variant edgekit_i8mm;
#endif

#endif
