// LSTM layers on a CPU, forward and backward, one group after another: see compiled.py.
//
// A group's weights stay in the cache for all its steps. Every product is one routine, C += A B,
// with B laid out in panels of a few vectors. A panel's part of a few rows of C is kept in
// registers while A and the panel go by.
//
// Gates are in PyTorch's order i, f, g, o:
//     i, f, o = sigmoid(.),  g = tanh(.),  c = f c' + i g,  h = o tanh(c),  . = W x + V h' + b

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

// how many vectors the panel at this vector has: panels differ by one at most
inline int64_t width(int64_t at, int64_t all) {
    const int64_t panels = (all + WIDEST - 1) / WIDEST, wide = all % panels, less = all / panels;
    return at < wide * (less + 1) ? less + 1 : less;
}

// B (steps, columns) in panels, with zeros behind its last column
template <class T>
void pack(int64_t steps, int64_t columns, const T* b, int64_t step, int64_t column, T* panels) {
    const int64_t all = vectors<T>(columns);
    for (int64_t at = 0; at < all;) {
        const int64_t wide = width(at, all), first = at * W<T>;
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

template <class T, int M, int N>
void tile(int64_t steps, const T* a, int64_t row, int64_t step, const T* panel, T* c, int64_t c_row,
          int64_t last) {
    Vec<T> sum[M][N];
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n)
            sum[m][n] = load(c + m * c_row + n * W<T>, n == N - 1 ? last : W<T>);
    for (int64_t k = 0; k < steps; ++k) {
        Vec<T> b[N];
        for (int n = 0; n < N; ++n) b[n] = load(panel + (k * N + n) * W<T>);
        for (int m = 0; m < M; ++m) {
            const T one = a[m * row + k * step];
            for (int n = 0; n < N; ++n) sum[m][n] += one * b[n];
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n)
            store(c + m * c_row + n * W<T>, sum[m][n], n == N - 1 ? last : W<T>);
}

template <class T, int N>
void tiles(int64_t rows, int64_t steps, const T* a, int64_t row, int64_t step, const T* panel, T* c,
           int64_t c_row, int64_t last) {
    int64_t m = 0;
    for (; m + TALLEST <= rows; m += TALLEST)
        tile<T, TALLEST, N>(steps, a + m * row, row, step, panel, c + m * c_row, c_row, last);
    a += m * row, c += m * c_row;
    switch (rows - m) {
        case 5: return tile<T, 5, N>(steps, a, row, step, panel, c, c_row, last);
        case 4: return tile<T, 4, N>(steps, a, row, step, panel, c, c_row, last);
        case 3: return tile<T, 3, N>(steps, a, row, step, panel, c, c_row, last);
        case 2: return tile<T, 2, N>(steps, a, row, step, panel, c, c_row, last);
        case 1: return tile<T, 1, N>(steps, a, row, step, panel, c, c_row, last);
    }
}

// C (rows, columns) += A (rows, steps) B (steps, columns); B in panels, rows of C whole
template <class T>
void add_product(int64_t rows, int64_t columns, int64_t steps, const T* a, int64_t row,
                 int64_t step, const T* panels, T* c) {
    const int64_t all = vectors<T>(columns);
    for (int64_t at = 0; at < all;) {
        const int64_t wide = width(at, all), first = at * W<T>;
        const int64_t last = std::min(W<T>, columns - first - (wide - 1) * W<T>);
        const T* panel = panels + first * steps;
        T* to = c + first;
        switch (wide) {
            case 4: tiles<T, 4>(rows, steps, a, row, step, panel, to, columns, last); break;
            case 3: tiles<T, 3>(rows, steps, a, row, step, panel, to, columns, last); break;
            case 2: tiles<T, 2>(rows, steps, a, row, step, panel, to, columns, last); break;
            case 1: tiles<T, 1>(rows, steps, a, row, step, panel, to, columns, last); break;
        }
        at += wide;
    }
}

template <class T> int64_t packed(int64_t steps, int64_t columns) {
    return steps * vectors<T>(columns) * W<T>;
}

// one step's gates and cell of one example, in place
template <class T>
void cell(int64_t units, T* gates, const T* before, T* after, T* hidden) {
    for (int64_t u = 0; u < units; u += W<T>) {
        const int64_t n = units - u;
        T *pi = gates + u, *pf = pi + units, *pg = pf + units, *po = pg + units;
        const Vec<T> i = sigmoid<T>(load(pi, n)), f = sigmoid<T>(load(pf, n));
        const Vec<T> g = tanh<T>(load(pg, n)), o = sigmoid<T>(load(po, n));
        const Vec<T> c = f * load(before + u, n) + i * g;
        store(pi, i, n), store(pf, f, n), store(pg, g, n), store(po, o, n);
        store(after + u, c, n), store(hidden + u, o * tanh<T>(c), n);
    }
}

// the way back through it: dc in place, and the gates' gradients
template <class T>
void cell_back(int64_t units, const T* gates, const T* before, const T* after, const T* dh, T* dc,
               T* slope) {
    for (int64_t u = 0; u < units; u += W<T>) {
        const int64_t n = units - u;
        const T* at = gates + u;
        const Vec<T> i = load(at, n), f = load(at + units, n);
        const Vec<T> g = load(at + 2 * units, n), o = load(at + 3 * units, n);
        const Vec<T> squashed = tanh<T>(load(after + u, n)), above = load(dh + u, n);
        const Vec<T> down = load(dc + u, n) + above * o * (T(1) - squashed * squashed);
        T* to = slope + u;
        store(to, down * g * i * (T(1) - i), n);
        store(to + units, down * load(before + u, n) * f * (T(1) - f), n);
        store(to + 2 * units, down * i * (T(1) - g * g), n);
        store(to + 3 * units, above * squashed * o * (T(1) - o), n);
        store(dc + u, down * f, n);
    }
}

struct Sizes {
    int64_t groups, steps, batch, inputs, units;
    int64_t wide() const { return 4 * units; }
    int64_t state() const { return batch * units; }
    int64_t all() const { return steps * batch; }
};

// One group forward.
//   x (all, inputs), of_x (wide, inputs), of_h (wide, units), bias and more (wide), h and c (state)
//   to hidden and cells (all, units), gates (all, wide)
template <class T> void forward(const Sizes& n, int64_t group, T* const* given) {
    const int64_t wide = n.wide(), state = n.state(), inputs = n.inputs, units = n.units;
    const T* const x = given[0] + group * n.all() * inputs;
    const T* const of_x = given[1] + group * wide * inputs;
    const T* const of_h = given[2] + group * wide * units;
    const T* const bias = given[3] + group * wide;
    const T* const more = given[4] + group * wide;
    const T* const h = given[5] + group * state;
    const T* const c = given[6] + group * state;
    T* const hidden = given[7] + group * n.steps * state;
    T* const cells = given[8] + group * n.steps * state;
    T* const gates = given[9] + group * n.all() * wide;

    thread_local Room<T> room;
    T* const w_x = room.of(packed<T>(inputs, wide) + packed<T>(units, wide));
    T* const w_h = w_x + packed<T>(inputs, wide);
    pack(inputs, wide, of_x, 1, inputs, w_x);
    pack(units, wide, of_h, 1, units, w_h);
    for (int64_t j = 0; j < wide; ++j) gates[j] = bias[j] + more[j];
    for (int64_t row = 1; row < n.all(); ++row)
        std::memcpy(gates + row * wide, gates, wide * sizeof(T));
    add_product(n.all(), wide, inputs, x, inputs, 1, w_x, gates);
    for (int64_t t = 0; t < n.steps; ++t) {
        const T* const h_before = t ? hidden + (t - 1) * state : h;
        const T* const c_before = t ? cells + (t - 1) * state : c;
        T* const now = gates + t * n.batch * wide;
        add_product(n.batch, wide, units, h_before, units, 1, w_h, now);
        for (int64_t e = 0; e < n.batch; ++e)
            cell(units, now + e * wide, c_before + e * units, cells + t * state + e * units,
                 hidden + t * state + e * units);
    }
}

// One group backward.
//   x, of_x, of_h, h, c, hidden, cells, gates as above, above (all, units), to the gradients of x,
//   of_x, of_h, either bias, h, and of c, where the last cell's comes in
template <class T> void backward(const Sizes& n, int64_t group, T* const* given) {
    const int64_t wide = n.wide(), state = n.state(), inputs = n.inputs, units = n.units;
    const T* const x = given[0] + group * n.all() * inputs;
    const T* const of_x = given[1] + group * wide * inputs;
    const T* const of_h = given[2] + group * wide * units;
    const T* const h = given[3] + group * state;
    const T* const c = given[4] + group * state;
    const T* const hidden = given[5] + group * n.steps * state;
    const T* const cells = given[6] + group * n.steps * state;
    const T* const gates = given[7] + group * n.all() * wide;
    const T* const above = given[8] + group * n.steps * state;
    T* const dx = given[9] + group * n.all() * inputs;
    T* const d_of_x = given[10] + group * wide * inputs;
    T* const d_of_h = given[11] + group * wide * units;
    T* const d_bias = given[12] + group * wide;
    T* const dh = given[13] + group * state;
    T* const dc = given[14] + group * state;

    thread_local Room<T> room;
    const int64_t panels = std::max({packed<T>(wide, units), packed<T>(wide, inputs),
                                     packed<T>(n.all(), units), packed<T>(n.all(), inputs)});
    T* const slope = room.of(n.all() * (wide + units) + panels);  // what the gates' sums change
    T* const before = slope + n.all() * wide;                     // the state before each step
    T* const b = before + n.all() * units;
    pack(wide, units, of_h, units, 1, b);
    std::memcpy(dh, above + (n.steps - 1) * state, state * sizeof(T));
    for (int64_t t = n.steps; t--;) {
        const T* const c_before = t ? cells + (t - 1) * state : c;
        T* const now = slope + t * n.batch * wide;
        for (int64_t e = 0; e < n.batch; ++e)
            cell_back(units, gates + (t * n.batch + e) * wide, c_before + e * units,
                      cells + t * state + e * units, dh + e * units, dc + e * units,
                      now + e * wide);
        if (t) std::memcpy(dh, above + (t - 1) * state, state * sizeof(T));
        else std::fill(dh, dh + state, T(0));
        add_product(n.batch, units, wide, now, wide, 1, b, dh);
    }
    std::memcpy(before, h, state * sizeof(T));
    std::memcpy(before + state, hidden, (n.steps - 1) * state * sizeof(T));
    std::fill(d_of_h, d_of_h + wide * units, T(0));
    pack(n.all(), units, before, units, 1, b);
    add_product(wide, units, n.all(), slope, 1, wide, b, d_of_h);
    std::fill(d_of_x, d_of_x + wide * inputs, T(0));
    pack(n.all(), inputs, x, inputs, 1, b);
    add_product(wide, inputs, n.all(), slope, 1, wide, b, d_of_x);
    std::fill(dx, dx + n.all() * inputs, T(0));
    pack(wide, inputs, of_x, inputs, 1, b);
    add_product(n.all(), inputs, wide, slope, wide, 1, b, dx);
    std::fill(d_bias, d_bias + wide, T(0));
    for (int64_t row = 0; row < n.all(); ++row)
        for (int64_t j = 0; j < wide; ++j) d_bias[j] += slope[row * wide + j];
}

}  // namespace

#define FOR(T, name, way)                                                                      \
    extern "C" void name(const Sizes* sizes, T* const* given) {                                \
        for (int64_t group = 0; group < sizes->groups; ++group) way<T>(*sizes, group, given);  \
    }
FOR(float, f32_forward, forward)
FOR(float, f32_backward, backward)
FOR(double, f64_forward, forward)
FOR(double, f64_backward, backward)
