//! Eight lanes in one AVX register.
#![expect(
    unsafe_code,
    reason = "intrinsics; the token proves that the CPU has them"
)]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every block is one intrinsic on registers or on a reference of the right size, \
              licensed by the contract of Avx2Lanes::new"
)]

use std::arch::x86_64::{
    __m256, __m256d, _CMP_GT_OQ, _CMP_UNORD_Q, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT,
    _mm_add_pd, _mm_add_ps, _mm_add_sd, _mm_add_ss, _mm_cvtsd_f64, _mm_cvtss_f32, _mm_loadu_si128,
    _mm_max_ps, _mm_max_ss, _mm_movehdup_ps, _mm_movehl_ps, _mm_storeu_si128, _mm_unpackhi_pd,
    _mm256_add_epi32, _mm256_add_pd, _mm256_add_ps, _mm256_andnot_ps, _mm256_blendv_ps,
    _mm256_castpd256_pd128, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_cvtps_pd, _mm256_cvtps_ph,
    _mm256_div_ps, _mm256_extractf128_pd, _mm256_extractf128_ps, _mm256_fmadd_pd, _mm256_fmadd_ps,
    _mm256_fmaddsub_ps, _mm256_fmsub_ps, _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_min_ps, _mm256_movehdup_ps, _mm256_moveldup_ps, _mm256_movemask_ps, _mm256_mul_ps,
    _mm256_packs_epi16, _mm256_packs_epi32, _mm256_permute_ps, _mm256_permute2f128_ps,
    _mm256_permutevar8x32_epi32, _mm256_round_ps, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_setzero_pd, _mm256_shuffle_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_sub_ps,
};

use half::f16;

use super::{LANES, Lanes};

/// Token of AVX2 with FMA and F16C; made only where these were detected.
#[derive(Debug, Clone, Copy)]
pub struct Avx2Lanes(());

impl Avx2Lanes {
    /// The licence to use AVX2, FMA and F16C.
    ///
    /// # Safety
    ///
    /// The CPU has all three (see [`Avx2Lanes::detected`]).
    #[inline(always)]
    #[must_use]
    pub unsafe fn new() -> Self {
        Self(())
    }

    /// Whether the CPU has AVX2, FMA and F16C.
    #[must_use]
    pub fn detected() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }
}

impl Lanes for Avx2Lanes {
    type F = __m256;
    type D = [__m256d; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m256 {
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: __m256, out: &mut [f32; LANES]) {
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_f16(self, x: __m256, out: &mut [f16; LANES]) {
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
            _mm_storeu_si128(out.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn store_i8(self, x: [__m256; 4], out: &mut [i8; 4 * LANES]) {
        unsafe {
            let [a, b, c, d] = x;
            let ab = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
            let cd = _mm256_packs_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
            // The packs work on 128-bit halves: restore the order of groups of four.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
        }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn fms(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmsub_ps(a, b, c) }
    }

    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn fma_sub_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // The intrinsic is named after its odd lanes first.
        unsafe { _mm256_fmaddsub_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, x: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), x) }
    }

    #[inline(always)]
    fn round(self, x: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    fn select_gt(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) }
    }

    #[inline(always)]
    fn add_exponent(self, x: __m256, n: __m256) -> __m256 {
        // A NaN converts to 0x8000_0000, of which the shift leaves nothing.
        unsafe {
            let n = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n))
        }
    }

    #[inline(always)]
    fn swap_pairs(self, x: __m256) -> __m256 {
        unsafe { _mm256_permute_ps::<0b10_11_00_01>(x) }
    }

    #[inline(always)]
    fn dup_even(self, x: __m256) -> __m256 {
        unsafe { _mm256_moveldup_ps(x) }
    }

    #[inline(always)]
    fn dup_odd(self, x: __m256) -> __m256 {
        unsafe { _mm256_movehdup_ps(x) }
    }

    #[inline(always)]
    fn deinterleave(self, lo: __m256, hi: __m256) -> (__m256, __m256) {
        unsafe {
            let first = _mm256_permute2f128_ps::<0x20>(lo, hi);
            let second = _mm256_permute2f128_ps::<0x31>(lo, hi);
            let even = _mm256_shuffle_ps::<0b10_00_10_00>(first, second);
            let odd = _mm256_shuffle_ps::<0b11_01_11_01>(first, second);
            // Halves hold (lo 0 2 4 6 | hi 0 2 4 6): already in order.
            (even, odd)
        }
    }

    #[inline(always)]
    fn sum(self, x: __m256) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn max_lane(self, x: __m256) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn any_nan(self, x: __m256) -> bool {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)) != 0 }
    }

    #[inline(always)]
    fn zero_f64(self) -> Self::D {
        unsafe { [_mm256_setzero_pd(); 2] }
    }

    #[inline(always)]
    fn add_square_f64(self, x: __m256, acc: Self::D) -> Self::D {
        unsafe {
            let lo = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
            let hi = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(x));
            // The product is exact, so the fused step equals the scalar two.
            [
                _mm256_fmadd_pd(lo, lo, acc[0]),
                _mm256_fmadd_pd(hi, hi, acc[1]),
            ]
        }
    }

    #[inline(always)]
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D {
        unsafe { [_mm256_add_pd(a[0], b[0]), _mm256_add_pd(a[1], b[1])] }
    }

    #[inline(always)]
    fn sum_f64(self, x: Self::D) -> f64 {
        unsafe {
            let four = _mm256_add_pd(x[0], x[1]);
            let two = _mm_add_pd(
                _mm256_castpd256_pd128(four),
                _mm256_extractf128_pd::<1>(four),
            );
            _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
        }
    }
}
