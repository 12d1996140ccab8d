// LSTM layers on a CPU, forward and backward, one group after another: see lstm_compiled.py.
//
// A group's weights stay in the cache for all its steps.
//
// Gates are in PyTorch's order i, f, g, o:
//     i, f, o = sigmoid(.),  g = tanh(.),  c = f c' + i g,  h = o tanh(c),  . = W x + V h' + b

#include "small_products.h"

namespace {

// C (rows, columns) += A (rows, steps) B (steps, columns); B in panels, rows of C whole
template <class T>
void add_product(int64_t rows, int64_t columns, int64_t steps, const T* a, int64_t row,
                 int64_t step, const T* panels, T* c) {
    const auto here = [=](int64_t m, int64_t v) { return c + m * columns + v * W<T>; };
    const auto count = [=](int64_t v, bool last) { return last ? columns - v * W<T> : W<T>; };
    product<T>(
        rows, vectors<T>(columns), steps, a, row, step, Panels<T>{panels, steps},
        [=](int64_t m, int64_t v, bool last) { return load(here(m, v), count(v, last)); },
        [=](int64_t m, int64_t v, bool last, Vec<T> sum) {
            store(here(m, v), sum, count(v, last));
        });
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
