/* The kernels for x86 processors with AVX-512 (F, BW, DQ, VL). */
#include "native.h"
#ifdef EDGEKIT_X86_VARIANTS
#include <immintrin.h>
#include <math.h>
#include <string.h>
#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#define VARIANT edgekit_avx512
#define VARIANT_NAME "avx512"
#define LANES 16
#define HALVES(from) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from)))
#define CODES(from) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from))))
#define ONE_HALF(bits) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128((int)(bits))))
#define SIXTEEN_OF(table, places, to)                                                              \
    _mm_storeu_si128((__m128i *)(to), _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(table)),  \
                                                       _mm_loadu_si128((const __m128i *)(places))))
#define PANEL_TOKENS 12 /* 12 x 2 sums in 32 registers */
#include "variant_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int edgekit_no_avx512; /* a file must declare something */
#endif
