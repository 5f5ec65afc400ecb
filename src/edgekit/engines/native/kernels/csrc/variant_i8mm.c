/* The kernels for ARM processors that also multiply matrices of bytes (2021 and later). */
#include "native.h"
#ifdef EDGEKIT_ARM_VARIANTS
#include <arm_neon.h>
#include <math.h>
#include <string.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#endif
#define VARIANT edgekit_i8mm
#define VARIANT_NAME "i8mm"
#define LANES 4
#define SIXTEEN_OF(table, places, to)                                                              \
    vst1q_s8(to, vqtbl1q_s8(vld1q_s8(table), vld1q_u8((const uint8_t *)(places))))
#define DIGITS
#define PAIRS
#define PANEL_TOKENS 8 /* 8 x 2 sums in 32 registers */
#include "variant_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int edgekit_no_i8mm; /* a file must declare something */
#endif
