/* The kernels for x86 processors with AVX2, FMA and F16C (2013 and later). */
#include "native.h"
#ifdef EDGEKIT_X86_VARIANTS
#include <immintrin.h>
#include <math.h>
#include <string.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define VARIANT edgekit_avx2
#define VARIANT_NAME "avx2"
#define LANES 8
#define HALVES(from) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from)))
#define CODES(from) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from))))
#define ONE_HALF(bits) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128((int)(bits))))
#define SIXTEEN_OF(table, places, to)                                                              \
    _mm_storeu_si128((__m128i *)(to), _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(table)),  \
                                                       _mm_loadu_si128((const __m128i *)(places))))
#define PANEL_TOKENS 6 /* 6 x 2 sums in 16 registers */
#include "variant_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int edgekit_no_avx2; /* a file must declare something */
#endif
