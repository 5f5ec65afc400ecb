/* Which variants of the kernels this processor can run. */
#include "native.h"

#if defined(EDGEKIT_X86_VARIANTS)
#include <cpuid.h>

/* Not every compiler that knows __builtin_cpu_supports knows this word. */
static bool converts_halves(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static int add_newer(const struct variant **found)
{
    int count = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && converts_halves()) {
        found[count++] = &edgekit_avx2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            found[count++] = &edgekit_avx512;
    }
    return count;
}

#elif defined(EDGEKIT_ARM_VARIANTS)
#if defined(__linux__)
#include <sys/auxv.h>
enum { DOTPROD = 1 << 20 /* of AT_HWCAP */, I8MM = 1 << 13 /* of AT_HWCAP2 */ };
static bool has_dotprod(void) { return getauxval(AT_HWCAP) & DOTPROD; }
static bool has_i8mm(void) { return getauxval(AT_HWCAP2) & I8MM; }

#elif defined(__APPLE__)
#include <sys/sysctl.h>
static bool has(const char *feature)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value;
}
static bool has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }

#elif defined(_WIN32)
#include <windows.h>
enum { DOTPROD = 43, I8MM = 66 }; /* PF_ARM_V82_..._INSTRUCTIONS_AVAILABLE of newer headers */
static bool has_dotprod(void) { return IsProcessorFeaturePresent(DOTPROD); }
static bool has_i8mm(void) { return IsProcessorFeaturePresent(I8MM); }

#else
static bool has_dotprod(void) { return false; }
static bool has_i8mm(void) { return false; }
#endif

static int add_newer(const struct variant **found)
{
    int count = 0;
    if (has_dotprod()) {
        found[count++] = &edgekit_dotprod;
        if (has_i8mm())
            found[count++] = &edgekit_i8mm;
    }
    return count;
}

#else
static int add_newer(const struct variant **found)
{
    (void)found;
    return 0;
}
#endif

int edgekit_variants(const struct variant *found[MOST_VARIANTS])
{
    found[0] = &edgekit_plain;
    return 1 + add_newer(found + 1);
}
