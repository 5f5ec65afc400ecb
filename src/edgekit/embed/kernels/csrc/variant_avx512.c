/* The kernels for x86 processors with AVX-512 (F, BW, DQ, VL). */
#include "native.h"
#ifdef EDGEKIT_X86_VARIANTS
#include <math.h>
#include <string.h>
#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#define VARIANT edgekit_avx512
#define VARIANT_NAME "avx512"
#define LANES 16
#define PANEL_TOKENS 12 /* 12 x 2 sums in 32 registers */
#include "variant_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int edgekit_no_avx512; /* a file must declare something */
#endif
