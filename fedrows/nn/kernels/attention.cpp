// DIN's attention on a CPU, forward and backward, one client after another: see
// attention_compiled.py.
//
// The first layer over [q, k, q-k, q k] is linear in k for one target q: a matrix M of the
// target's own and a shift s. An example's list stays in the cache for all its layers, and what
// fills a list up is left out. For its real items, with sigmoids S:
//     h1 = S(M k + s),  h2 = S(W2 h1 + b2),  share = softmax(w3 . h2)
//     M = W_k - W_gap + W_product diag(q),  s = (W_q + W_gap) q + b1
// Every item is followed by a 1, so that s is one more column of M.

#include <thread>
#include <vector>

#include "small_products.h"

namespace {

typedef Vec<float> V;
constexpr int64_t LANES = W<float>;

struct Sizes {
    int64_t groups, batch, length, width, first, second, threads;
    int64_t item() const { return vectors<float>(width + 1) * LANES; }
    int64_t h1() const { return round(first); }
    int64_t h2() const { return round(second); }
    static int64_t round(int64_t units) { return (units + 15) / 16 * 16; }  // whole vectors
};

struct Scratch {  // parts of a thread's memory
    float* free;
    float* take(int64_t count) {
        float* const mine = free;
        free += count;
        return mine;
    }
};

template <int SIZE> inline float sum_of(const float* from) {  // in halves, which stay in registers
    typedef float Half __attribute__((vector_size(SIZE / 2 * sizeof(float))));
    Half low, high;
    std::memcpy(&low, from, sizeof low);
    std::memcpy(&high, from + SIZE / 2, sizeof high);
    low += high;
    float sums[SIZE / 2];
    std::memcpy(sums, &low, sizeof low);
    if constexpr (SIZE == 4) return sums[0] + sums[1];
    else return sum_of<SIZE / 2>(sums);
}
inline float sum_of(V x) {
    float sums[LANES];
    store(sums, x);
    return sum_of<LANES>(sums);
}
// Asks for an array that is needed soon, one line of the cache after another, while others compute.
struct Ahead {
    const char *at, *end;
    Ahead(const float* from, int64_t count)
        : at(reinterpret_cast<const char*>(from)), end(at + count * sizeof(float)) {}
    void more() {
        if (at < end) __builtin_prefetch(at), at += 64;
    }
};

inline float dot(int64_t count, const float* a, const float* b) {  // of whole vectors
    V sum = load(a) * load(b);
    for (int64_t i = LANES; i < count; i += LANES) sum += load(a + i) * load(b + i);
    return sum_of(sum);
}
inline void add(int64_t count, float factor, const float* from, float* to) {  // whole vectors too
    for (int64_t i = 0; i < count; i += LANES)
        store(to + i, load(to + i) + factor * load(from + i));
}
inline V exponential(V x) {
    V power, less_one;
    split<float>(within<float>(x, Lanes<float>::far), power, less_one);
    return power + power * less_one;
}

// to (rows, wide) from from (rows, columns), with zeros behind a row
inline void widen(int64_t rows, int64_t columns, const float* from, int64_t wide, float* to) {
    for (int64_t i = 0; i < rows; ++i, from += columns, to += wide) {
        std::copy(from, from + columns, to);
        std::fill(to + columns, to + wide, 0.0f);
    }
}
// to (columns, wide) from from (rows, columns), a row of which is `length` long, with zeros behind;
// four rows at a time, since reading on and on is what the cache is quick at
inline void turn(int64_t rows, int64_t columns, const float* from, int64_t length, float* to,
                 int64_t wide) {
    typedef float Four __attribute__((vector_size(16)));
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4, from += 4 * length)
        for (int64_t j = 0; j < columns; ++j) {
            const float* const at = from + j;
            const Four four = {at[0], at[length], at[2 * length], at[3 * length]};
            std::memcpy(to + j * wide + i, &four, sizeof four);
        }
    for (; i < wide; ++i, from += length)
        for (int64_t j = 0; j < columns; ++j) to[j * wide + i] = i < rows ? from[j] : 0;
}

// the first layer's weights (first, 4 width), turned: rows of W_q + W_gap, of W_k - W_gap, of
// W_gap and of W_product
void turn_first(const Sizes& n, const float* w1, float* parts) {
    const int64_t of = n.width * n.h1();
    turn(n.first, 4 * n.width, w1, 4 * n.width, parts, n.h1());
    add(of, 1, parts + 2 * of, parts);
    add(of, -1, parts + 2 * of, parts + of);
}

// the places of a list's real items, and the items, each with a 1 and then zeros behind it
int64_t real_items(const Sizes& n, const float* k, const bool* mask, int64_t* places,
                   float* items) {
    int64_t real = 0;
    for (int64_t l = 0; l < n.length; ++l) {
        places[real] = l;
        real += mask[l];
    }
    Lanes<float>::I lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    const float* const end = k + n.length * n.width;
    for (int64_t i = 0; i < real; ++i)
        for (int64_t j = 0; j < n.item(); j += LANES) {
            const float* const from = k + places[i] * n.width + j;
            const int32_t count = std::max<int64_t>(n.width - j, 0);
            const V x = from + LANES <= end ? load(from) : load(from, count);
            const V behind = lane == Lanes<float>::I{} + count ? V{} + 1.0f : V{};
            store(items + i * n.item() + j, lane < Lanes<float>::I{} + count ? x : behind);
        }
    return real;
}

// share = softmax(score), in place
void softmax(int64_t count, float* share) {
    const float largest = *std::max_element(share, share + count);
    float sum = 0;
    for (int64_t i = 0; i < count; i += LANES)
        store(share + i, exponential(load(share + i, count - i) - largest), count - i);
    for (int64_t i = 0; i < count; ++i) sum += share[i];
    for (int64_t i = 0; i < count; ++i) share[i] /= sum;
}

// One group forward.
//   q (batch, width), k (batch, length, width), mask (batch, length), w1 (first, 4 width),
//   b1 (first), w2 (second, first), b2 and w3 (second)
//   to attention and total (batch, width), and, of real items alone and from each list's beginning,
//   share (batch, length), h1 and h2 (batch, length, whole vectors)
void forward(const Sizes& n, int64_t group, void* const* given) {
    const int64_t A = n.first, C = n.second, w = n.width, wide1 = n.h1(), wide2 = n.h2();
    const auto part = [&](int place, int64_t size) {
        return static_cast<float*>(given[place]) + group * size;
    };
    const float *q = part(0, n.batch * w), *k = part(1, n.batch * n.length * w);
    const bool* mask = static_cast<const bool*>(given[2]) + group * n.batch * n.length;
    const float *const w1 = part(3, A * 4 * w), *const b1 = part(4, A);
    const float *const w2 = part(5, C * A), *const b2 = part(6, C), *const w3 = part(7, C);
    float *attention = part(8, n.batch * w), *total = part(9, n.batch * w);
    float* share = part(10, n.batch * n.length);
    float *h1 = part(11, n.batch * n.length * wide1), *h2 = part(12, n.batch * n.length * wide2);

    thread_local Room<float> room;
    thread_local Room<int64_t> places;
    Scratch scratch{room.of((5 * w + 1) * wide1 + (A + 2) * wide2 + (n.length + 2) * n.item())};
    float *const parts = scratch.take(4 * w * wide1), *const m = scratch.take((w + 1) * wide1);
    float *const turned2 = scratch.take(A * wide2), *const bias2 = scratch.take(wide2);
    float *const out = scratch.take(wide2), *const items = scratch.take(n.length * n.item());
    float *const mean = scratch.take(n.item()), *const sum = scratch.take(n.item());
    turn_first(n, w1, parts);
    turn(C, A, w2, A, turned2, wide2);
    widen(1, C, b2, wide2, bias2);
    widen(1, C, w3, wide2, out);

    Ahead next1(w1 + A * 4 * w, A * 4 * w), next2(w2 + C * A, C * A);
    for (int64_t example = 0; example < n.batch; ++example) {
        Ahead next(k + n.length * w, n.length * w);
        const int64_t real = real_items(n, k, mask, places.of(n.length + 1), items);
        widen(1, A, b1, wide1, m + w * wide1);
        for (int64_t j = 0; j < w; ++j) {
            const float *const own = parts + j * wide1, *const more = own + 3 * w * wide1;
            std::copy(own + w * wide1, own + (w + 1) * wide1, m + j * wide1);
            add(wide1, q[j], more, m + j * wide1);
            add(wide1, q[j], own, m + w * wide1);
        }
        product<float>(
            real, wide1 / LANES, w + 1, items, n.item(), 1, Rows<float>{m, wide1},
            [](int64_t, int64_t, bool) { return V{}; },
            [=, &next, &next1](int64_t i, int64_t v, bool, V x) {
                next.more(), next1.more();
                store(h1 + i * wide1 + v * LANES, sigmoid<float>(x));
            });
        product<float>(
            real, wide2 / LANES, A, h1, wide1, 1, Rows<float>{turned2, wide2},
            [=](int64_t, int64_t v, bool) { return load(bias2 + v * LANES); },
            [=, &next2](int64_t i, int64_t v, bool, V x) {
                next2.more();
                store(h2 + i * wide2 + v * LANES, sigmoid<float>(x));
            });
        for (int64_t i = 0; i < real; ++i) share[i] = dot(wide2, h2 + i * wide2, out);
        if (real) softmax(real, share);
        std::fill(mean, mean + 2 * n.item(), 0.0f);
        for (int64_t i = 0; i < real; ++i) {
            add(n.item(), share[i], items + i * n.item(), mean);
            add(n.item(), 1, items + i * n.item(), sum);
        }
        std::copy(mean, mean + w, attention);
        std::copy(sum, sum + w, total);
        q += w, k += n.length * w, mask += n.length, attention += w, total += w;
        share += n.length, h1 += n.length * wide1, h2 += n.length * wide2;
    }
}

// One group backward.
//   q, k, mask, w1, w2, w3, share, h1 and h2 as above, d_attention and d_total (batch, width)
//   to the gradients of q, k, w1, b1, w2, b2 and w3
void backward(const Sizes& n, int64_t group, void* const* given) {
    const int64_t A = n.first, C = n.second, w = n.width, wide1 = n.h1(), wide2 = n.h2();
    const int64_t item = n.item(), length = n.length;
    const auto part = [&](int place, int64_t size) {
        return static_cast<float*>(given[place]) + group * size;
    };
    const float *q = part(0, n.batch * w), *k = part(1, n.batch * n.length * w);
    const bool* mask = static_cast<const bool*>(given[2]) + group * n.batch * n.length;
    const float *const w1 = part(3, A * 4 * w), *const w2 = part(4, C * A);
    const float *const w3 = part(5, C), *share = part(6, n.batch * n.length);
    const float* h1 = part(7, n.batch * n.length * wide1);
    const float* h2 = part(8, n.batch * n.length * wide2);
    const float *d_attention = part(9, n.batch * w), *d_total = part(10, n.batch * w);
    float *dq = part(11, n.batch * w), *dk = part(12, n.batch * n.length * w);
    float *const d_w1 = part(13, A * 4 * w), *const d_b1 = part(14, A);
    float *const d_w2 = part(15, C * A), *const d_b2 = part(16, C), *const d_w3 = part(17, C);

    thread_local Room<float> room;
    thread_local Room<int64_t> places_room;
    Scratch scratch{room.of((9 * w + 2 + n.length + 2 * C) * wide1 + (n.length + 3) * wide2 +
                            (2 * n.length + 3 * A + 3) * item)};
    int64_t* const places = places_room.of(n.length + 1);
    float *const parts = scratch.take(4 * w * wide1), *const own2 = scratch.take(C * wide1);
    float *const d_parts = scratch.take(4 * w * wide1), *const d_bias1 = scratch.take(wide1);
    float *const d_own2 = scratch.take(C * wide1), *const dm = scratch.take((w + 1) * wide1);
    float *const d1 = scratch.take(n.length * wide1), *const d2 = scratch.take(n.length * wide2);
    float *const out = scratch.take(wide2), *const d_bias2 = scratch.take(wide2);
    float *const d_out = scratch.take(wide2), *const items = scratch.take(n.length * item);
    float *const d_items = scratch.take(n.length * item), *const m = scratch.take(A * item);
    float *const of_k = scratch.take(A * item), *const of_product = scratch.take(A * item);
    float *const target = scratch.take(item), *const d_mean = scratch.take(item);
    float* const d_sum = scratch.take(item);
    turn_first(n, w1, parts);
    widen(C, A, w2, wide1, own2);
    widen(1, C, w3, wide2, out);
    for (int64_t a = 0; a < A; ++a) {
        const float *const row = w1 + a * 4 * w;
        widen(1, w, row + w, item, of_k + a * item);
        for (int64_t j = 0; j < w; ++j) of_k[a * item + j] -= row[2 * w + j];
        widen(1, w, row + 3 * w, item, of_product + a * item);
    }
    std::fill(d_parts, d_parts + 4 * w * wide1 + wide1 + C * wide1, 0.0f);  // the next two as well
    std::fill(d_bias2, d_bias2 + 2 * wide2, 0.0f);                         // and d_out
    std::fill(dk, dk + n.batch * n.length * w, 0.0f);

    Ahead next1(w1 + A * 4 * w, A * 4 * w), next2(w2 + C * A, C * A);
    for (int64_t example = 0; example < n.batch; ++example) {
        Ahead next(k + n.length * w, n.length * w);
        const int64_t real = real_items(n, k, mask, places, items);
        widen(1, w, q, item, target);
        widen(1, w, d_attention, item, d_mean);
        widen(1, w, d_total, item, d_sum);
        float mean = 0;
        for (int64_t i = 0; i < real; ++i) {  // d_items: for now, the slope of every score
            d_items[i] = dot(item, items + i * item, d_mean);
            mean += share[i] * d_items[i];
        }
        for (int64_t i = 0; i < real; ++i) d_items[i] = share[i] * (d_items[i] - mean);
        for (int64_t v = 0; v < wide2; v += LANES) {
            V last = load(d_out + v), bias = load(d_bias2 + v);
            for (int64_t i = 0; i < real; ++i) {
                const V h = load(h2 + i * wide2 + v);
                __builtin_prefetch(h2 + (n.length + i) * wide2 + v);
                const V slope = d_items[i] * load(out + v) * h * (1.0f - h);
                last += d_items[i] * h, bias += slope;
                store(d2 + i * wide2 + v, slope);
            }
            store(d_out + v, last), store(d_bias2 + v, bias);
        }
        product<float>(
            real, wide1 / LANES, C, d2, wide2, 1, Rows<float>{own2, wide1},
            [](int64_t, int64_t, bool) { return V{}; },
            [=](int64_t i, int64_t v, bool, V x) {
                const V h = load(h1 + i * wide1 + v * LANES);
                __builtin_prefetch(h1 + (length + i) * wide1 + v * LANES);
                store(d1 + i * wide1 + v * LANES, x * h * (1.0f - h));
            });
        product<float>(
            C, wide1 / LANES, real, d2, 1, wide2, Rows<float>{h1, wide1},
            [=](int64_t c, int64_t v, bool) { return load(d_own2 + c * wide1 + v * LANES); },
            [=, &next](int64_t c, int64_t v, bool, V x) {
                next.more();
                store(d_own2 + c * wide1 + v * LANES, x);
            });
        product<float>(
            w + 1, wide1 / LANES, real, items, 1, item, Rows<float>{d1, wide1},
            [](int64_t, int64_t, bool) { return V{}; },
            [=](int64_t j, int64_t v, bool, V x) { store(dm + j * wide1 + v * LANES, x); });
        const float* const d_shift = dm + w * wide1;
        add(wide1, 1, d_shift, d_bias1);
        for (int64_t j = 0; j < w; ++j) {
            const float *const own = parts + j * wide1, *const slope = dm + j * wide1;
            float* const to = d_parts + j * wide1;
            dq[j] = dot(wide1, own, d_shift) + dot(wide1, own + 3 * w * wide1, slope);
            add(wide1, q[j], d_shift, to);
            add(wide1, 1, slope, to + w * wide1);
            add(wide1, q[j], slope, to + 3 * w * wide1);
        }
        for (int64_t a = 0; a < A; ++a)
            for (int64_t v = 0; v < item; v += LANES)
                store(m + a * item + v, load(of_k + a * item + v) +
                                            load(target + v) * load(of_product + a * item + v));
        product<float>(
            real, vectors<float>(w), A, d1, wide1, 1, Rows<float>{m, item},
            [=](int64_t i, int64_t v, bool) {
                return share[i] * load(d_mean + v * LANES) + load(d_sum + v * LANES);
            },
            [=, &next1, &next2](int64_t i, int64_t v, bool, V x) {
                next1.more(), next2.more();
                store(d_items + i * item + v * LANES, x);
            });
        for (int64_t i = 0; i < real; ++i)
            std::copy(d_items + i * item, d_items + i * item + w, dk + places[i] * w);
        q += w, k += n.length * w, mask += n.length, dq += w, dk += n.length * w;
        d_attention += w, d_total += w;
        share += n.length, h1 += n.length * wide1, h2 += n.length * wide2;
    }

    const int64_t of = w * wide1;
    std::copy(d_parts, d_parts + of, d_parts + 2 * of);
    add(of, -1, d_parts + of, d_parts + 2 * of);
    for (int64_t a = 0; a < A; ++a)
        for (int64_t j = 0; j < 4 * w; ++j) d_w1[a * 4 * w + j] = d_parts[j * wide1 + a];
    for (int64_t c = 0; c < C; ++c)
        std::copy(d_own2 + c * wide1, d_own2 + c * wide1 + A, d_w2 + c * A);
    std::copy(d_bias1, d_bias1 + A, d_b1);
    std::copy(d_bias2, d_bias2 + C, d_b2);
    std::copy(d_out, d_out + C, d_w3);
}

// all groups, in as many parts as there may be threads; no group's results depend on the part
template <class Way> void run(const Sizes& n, void* const* given, const Way& way) {
    const int64_t parts = std::max<int64_t>(1, std::min(n.threads, n.groups));
    const auto some = [&](int64_t part) {
        const int64_t end = n.groups * (part + 1) / parts;
        for (int64_t group = n.groups * part / parts; group < end; ++group) way(n, group, given);
    };
    std::vector<std::thread> others;
    int64_t part = 1;
    try {
        for (; part < parts; ++part) others.emplace_back(some, part);
    } catch (...) {  // there is no thread to be had: this one does what is left
    }
    some(0);
    for (; part < parts; ++part) some(part);
    for (std::thread& other : others) other.join();
}

}  // namespace

extern "C" void f32_forward(const Sizes* n, void* const* given) { run(*n, given, forward); }
extern "C" void f32_backward(const Sizes* n, void* const* given) { run(*n, given, backward); }
