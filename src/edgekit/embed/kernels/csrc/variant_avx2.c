/* The kernels for x86 processors with AVX2 and FMA (2013 and later). */
#include "native.h"
#ifdef EDGEKIT_X86_VARIANTS
#include <math.h>
#include <string.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define VARIANT edgekit_avx2
#define VARIANT_NAME "avx2"
#define LANES 8
#define PANEL_TOKENS 6 /* 6 x 2 sums in 16 registers */
#include "variant_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int edgekit_no_avx2; /* a file must declare something */
#endif
