// Products of small matrices and functions of vectors, for the kernels of layers on a CPU.
//
// Every product is one routine. A few rows and vectors of the result stay in registers while the
// left matrix and the right one go by; the right one is laid out in rows or in panels of a few
// vectors. The compiler chooses the instructions, by what the processor has.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64;  // of a vector
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int WIDEST = 4;  // vectors of a panel; there are 32 registers
#else
constexpr int WIDEST = 2;  // there are 16
#endif
constexpr int TALLEST = 6;  // rows of C at a time

template <class T> struct Lanes;
template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(BYTES)));
    typedef int32_t I __attribute__((vector_size(BYTES)));
    static constexpr int fraction = 23, bias = 127, terms = 7;
    static constexpr float far = 87;
};
template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(BYTES)));
    typedef int64_t I __attribute__((vector_size(BYTES)));
    static constexpr int fraction = 52, bias = 1023, terms = 13;
    static constexpr double far = 708;
};
template <class T> using Vec = typename Lanes<T>::V;
template <class T> constexpr int64_t W = BYTES / sizeof(T);

template <class T> inline Vec<T> load(const T* from) {
    Vec<T> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class T> inline Vec<T> load(const T* from, int64_t count) {
    if (count >= W<T>) return load(from);
    Vec<T> v = {};
    std::memcpy(&v, from, count * sizeof(T));
    return v;
}
template <class T> inline void store(T* to, Vec<T> v) { std::memcpy(to, &v, sizeof v); }
template <class T> inline void store(T* to, Vec<T> v, int64_t count) {
    if (count >= W<T>) store(to, v);
    else std::memcpy(to, &v, count * sizeof(T));
}

constexpr double one_over_factorial(int n) { return n < 2 ? 1 : one_over_factorial(n - 1) / n; }

// 2^n and e^r - 1, where x = n ln 2 + r, |r| <= ln 2 / 2; |x| <= far
template <class T> inline void split(Vec<T> x, Vec<T>& power, Vec<T>& less_one) {
    using L = Lanes<T>;
    using I = typename L::I;
    constexpr T round = T(3) * T(int64_t(1) << (L::fraction - 1));  // + and - it: a whole number
    const Vec<T> shifted = x * T(1.44269504088896340736) + round;
    const Vec<T> n = shifted - round;
    // ln 2 in two parts, the first with few digits, so that n times it is exact
    constexpr T most = sizeof(T) == 4 ? T(0.693359375) : T(6.93147180369123816490e-01);
    constexpr T rest = sizeof(T) == 4 ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
    const Vec<T> r = (x - n * most) - n * rest;
    Vec<T> sum = r * T(one_over_factorial(L::terms)) + T(one_over_factorial(L::terms - 1));
    for (int k = L::terms - 2; k > 0; --k) sum = sum * r + T(one_over_factorial(k));
    less_one = sum * r;
    I bits;  // n is in the last digits of the shifted number, and goes where the exponent is
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + L::bias) << L::fraction;
    std::memcpy(&power, &bits, sizeof bits);
}
template <class T> inline Vec<T> within(Vec<T> x, T far) {
    const Vec<T> most = Vec<T>{} + far;
    x = x > most ? most : x;
    return x < -most ? -most : x;
}
template <class T> inline Vec<T> sigmoid(Vec<T> x) {
    Vec<T> power, less_one;
    split<T>(within<T>(-x, Lanes<T>::far), power, less_one);
    return T(1) / (T(1) + (power + power * less_one));
}
template <class T> inline Vec<T> tanh(Vec<T> x) {
    Vec<T> power, less_one;
    split<T>(within<T>(T(2) * x, T(44)), power, less_one);
    const Vec<T> e = power * less_one + (power - T(1));  // e^2x - 1, exact near 0 too
    return e / (e + T(2));
}

template <class T> struct Room {  // a thread's scratch, kept between calls
    struct Free { void operator()(T* p) const { ::operator delete[](p, std::align_val_t(64)); } };
    std::unique_ptr<T[], Free> held;
    int64_t size = 0;
    T* of(int64_t count) {
        if (count > size) {
            held.reset();
            held.reset(static_cast<T*>(::operator new[](count * sizeof(T), std::align_val_t(64))));
            size = count;
        }
        return held.get();
    }
};

template <class T> inline int64_t vectors(int64_t columns) { return (columns + W<T> - 1) / W<T>; }

// a part of the vectors or rows, all parts of nearly the same size: 5 by 4 at most are 3 and 2
inline int64_t part(int64_t at, int64_t all, int64_t most) {
    const int64_t parts = (all + most - 1) / most, larger = all % parts, size = all / parts;
    return at < larger * (size + 1) ? size + 1 : size;
}

// the right matrix of a product in rows, each with whole vectors
template <class T> struct Rows {
    const T* at;
    int64_t length;
    const T* from(int64_t first) const { return at + first; }
    template <int N> int64_t step() const { return length; }
};
// and in panels, as `pack` makes them
template <class T> struct Panels {
    const T* at;
    int64_t steps;
    const T* from(int64_t first) const { return at + first * steps; }
    template <int N> int64_t step() const { return N * W<T>; }
};

// B (steps, columns) in panels, with zeros behind its last column
template <class T>
void pack(int64_t steps, int64_t columns, const T* b, int64_t step, int64_t column, T* panels) {
    const int64_t all = vectors<T>(columns);
    for (int64_t at = 0; at < all;) {
        const int64_t wide = part(at, all, WIDEST), first = at * W<T>;
        const int64_t count = std::min(wide * W<T>, columns - first);
        T* const panel = panels + first * steps;
        const int64_t across = wide * W<T>;
        if (column == 1) {
            for (int64_t k = 0; k < steps; ++k) {
                std::memcpy(panel + k * across, b + k * step + first, count * sizeof(T));
                std::fill(panel + k * across + count, panel + (k + 1) * across, T(0));
            }
        } else {
            for (int64_t j = 0; j < across; ++j)
                for (int64_t k = 0; k < steps; ++k)
                    panel[k * across + j] = j < count ? b[k * step + (first + j) * column] : T(0);
        }
        at += wide;
    }
}

template <class T, int M, int N, class Right, class Begin, class End>
inline void tile(int64_t steps, const T* a, int64_t row, int64_t step, const Right& right,
                 int64_t top, int64_t left, const Begin& begin, const End& end) {
    Vec<T> sum[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[m][n] = begin(top + m, left + n, n == N - 1);
    const T* const from = right.from(left * W<T>);
    a += top * row;
    for (int64_t k = 0; k < steps; ++k) {
        Vec<T> b[N];
        for (int n = 0; n < N; ++n) b[n] = load(from + k * right.template step<N>() + n * W<T>);
        for (int m = 0; m < M; ++m) {
            const T one = a[m * row + k * step];
            for (int n = 0; n < N; ++n) sum[m][n] += one * b[n];
        }
    }
#pragma GCC unroll 8  // or the sums go through memory
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) end(top + m, left + n, n == N - 1, sum[m][n]);
}

template <class T, int N, class Right, class Begin, class End>
void tiles(int64_t rows, int64_t steps, const T* a, int64_t row, int64_t step, const Right& right,
           int64_t left, const Begin& begin, const End& end) {
    for (int64_t m = 0; m < rows;) {
        const int64_t tall = part(m, rows, TALLEST);
        switch (tall) {
            case 6: tile<T, 6, N>(steps, a, row, step, right, m, left, begin, end); break;
            case 5: tile<T, 5, N>(steps, a, row, step, right, m, left, begin, end); break;
            case 4: tile<T, 4, N>(steps, a, row, step, right, m, left, begin, end); break;
            case 3: tile<T, 3, N>(steps, a, row, step, right, m, left, begin, end); break;
            case 2: tile<T, 2, N>(steps, a, row, step, right, m, left, begin, end); break;
            case 1: tile<T, 1, N>(steps, a, row, step, right, m, left, begin, end); break;
        }
        m += tall;
    }
}

// C = A B, with A (rows, steps) at a, its rows and its columns so far apart, and B (steps, `wide`
// vectors). Each vector of C is begin(its row, its place) plus the product, and goes to end; both
// also learn whether a vector is the last of its panel, as only such a one may be the last of all.
template <class T, class Right, class Begin, class End>
void product(int64_t rows, int64_t wide, int64_t steps, const T* a, int64_t row, int64_t step,
             const Right& right, const Begin& begin, const End& end) {
    for (int64_t v = 0; v < wide;) {
        const int64_t some = part(v, wide, WIDEST);
        switch (some) {
            case 4: tiles<T, 4>(rows, steps, a, row, step, right, v, begin, end); break;
            case 3: tiles<T, 3>(rows, steps, a, row, step, right, v, begin, end); break;
            case 2: tiles<T, 2>(rows, steps, a, row, step, right, v, begin, end); break;
            case 1: tiles<T, 1>(rows, steps, a, row, step, right, v, begin, end); break;
        }
        v += some;
    }
}

}  // namespace
