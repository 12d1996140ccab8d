// DIN's attention: a block has one example, its whole list, and makes everything in shared memory.
//
//   W1 [q, k, q-k, q*k] + b1 = (Wk - Wgap + Wproduct diag(q)) k + (Wq + Wgap) q + b1 = M k + s
//   one = sigmoid(M k + s),  two = sigmoid(W2 one + b2),  share = softmax over real items of w3 two
//
// Neither hidden layer of a list is ever in global memory: the backward kernel makes both anew.
// What belongs to a client (G) comes out of it per example, (G B, ...), to be added up in order.
// Compiled with L (items), W (width), A, C (units of the layers) and THREADS defined.
//
//   q, attention, total (G, B, W); k (G, B, L, W); mask, share (G, B, L); w1 (G, A, 4 W); b1 (G, A)
//   w2 (G, C, A); b2, w3 (G, C)

#define PARTS 6
#define NOWHERE __int_as_float(0xff800000)  // minus infinity
#define UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define LP UP(L, 4)  // sizes filled up with zeros, so that four numbers can be loaded at once;
#define WP UP(W, 4)  // rows four longer than that, so that neighbours lie in other banks
#define AP (UP(A, 8) + 4)
#define CP (UP(C, 8) + 4)
#define OP (LP > WP ? LP : WP)
#define OV (UP(A, 4) * CP > WP * AP ? UP(A, 4) * CP : WP * AP)

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// store(i, j, sum over k of left(i, k) right(k, j)), TM x TN numbers a thread, four k at a time.
// ROWS: left(i, k) = x[i xs + k], else x[k xs + i].  COLUMNS: right(k, j) = y[j ys + k], else
// y[k ys + j].  A thread's rows or columns lie apart where k runs along memory, else side by side.
// LAST: the last threads do it, where the first have work of their own to do meanwhile.
template <int M, int N, int K, int TM, int TN, bool ROWS, bool COLUMNS, bool LAST, class Store>
__device__ __forceinline__ void product(const float *x, int xs, const float *y, int ys, Store store)
{
    constexpr int MT = (M + TM - 1) / TM, NT = (N + TN - 1) / TN;
    for (int tile = LAST ? THREADS - 1 - threadIdx.x : threadIdx.x; tile < MT * NT; tile += THREADS) {
        const int it = tile / NT, jt = tile % NT;
        float sum[TM][TN] = {};
#pragma unroll 2
        for (int k = 0; k < K; k += 4) {
            float l[TM][4], r[4][TN];
            if (ROWS) {
#pragma unroll
                for (int m = 0; m < TM; m++) {
                    const float4 four = *(const float4 *)(x + min(it + m * MT, M - 1) * xs + k);
                    l[m][0] = four.x, l[m][1] = four.y, l[m][2] = four.z, l[m][3] = four.w;
                }
            } else {
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int m = 0; m < TM; m += 4) {
                        const float4 four = *(const float4 *)(x + (k + n) * xs + it * TM + m);
                        l[m][n] = four.x, l[m + 1][n] = four.y;
                        l[m + 2][n] = four.z, l[m + 3][n] = four.w;
                    }
            }
            if (COLUMNS) {
#pragma unroll
                for (int n = 0; n < TN; n++) {
                    const float4 four = *(const float4 *)(y + min(jt + n * NT, N - 1) * ys + k);
                    r[0][n] = four.x, r[1][n] = four.y, r[2][n] = four.z, r[3][n] = four.w;
                }
            } else {
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int n = 0; n < TN; n += 4) {
                        const float4 four = *(const float4 *)(y + (k + m) * ys + jt * TN + n);
                        r[m][n] = four.x, r[m][n + 1] = four.y;
                        r[m][n + 2] = four.z, r[m][n + 3] = four.w;
                    }
            }
#pragma unroll
            for (int four = 0; four < 4; four++)
#pragma unroll
                for (int m = 0; m < TM; m++)
#pragma unroll
                    for (int n = 0; n < TN; n++)
                        sum[m][n] = fmaf(l[m][four], r[four][n], sum[m][n]);
        }
#pragma unroll
        for (int m = 0; m < TM; m++)
#pragma unroll
            for (int n = 0; n < TN; n++) {
                const int i = ROWS ? it + m * MT : it * TM + m;
                const int j = COLUMNS ? jt + n * NT : jt * TN + n;
                if (i < M && j < N) store(i, j, sum[m][n]);
            }
    }
}

// store(e, value(e)) for N numbers; all of a thread's loads are on their way before the first store
template <int N, class Value, class Store>
__device__ __forceinline__ void load(Value value, Store store)
{
    constexpr int EACH = (N + THREADS - 1) / THREADS;
    float held[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int e = threadIdx.x + n * THREADS;
        held[n] = e < N ? value(e) : 0.0f;
    }
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int e = threadIdx.x + n * THREADS;
        if (e < N) store(e, held[n]);
    }
}

// store(j, sum over i of value(i, j)), the rows split among PARTS threads for each column
template <int M, int N, class Value, class Store>
__device__ __forceinline__ void columns(float *scratch, Value value, Store store)
{
    for (int e = threadIdx.x; e < PARTS * N; e += THREADS) {
        float sum = 0.0f;
        for (int i = e / N; i < M; i += PARTS) sum += value(i, e % N);
        scratch[e] = sum;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < N; j += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < PARTS; part++) sum += scratch[part * N + j];
        store(j, sum);
    }
    __syncthreads();
}

struct Room {  // in shared memory
    float items[LP * WP], one[OP * AP], two[LP * CP], m[WP * AP], v[OV];
    float own[W], s[A], bias[C], out[C], share[L], ds[L], real[L], pooled[W], summed[W], d_s[A];
    float scratch[PARTS * (W + A + C)], mean;
};

__device__ __forceinline__ void hidden_layers(
    Room &room, const float *__restrict__ q, const float *__restrict__ k,
    const float *__restrict__ w1, const float *__restrict__ b1, const float *__restrict__ w2,
    const float *__restrict__ b2, const float *__restrict__ w3, long long at, long long group)
{
    constexpr int whole = LP * (WP + CP) + (OP + WP) * AP + OV;
    for (int e = threadIdx.x; e < whole / 4; e += THREADS)
        ((float4 *)room.items)[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int e = threadIdx.x; e < W; e += THREADS) room.own[e] = q[at * W + e];
    __syncthreads();
    k += at * L * W;
    w1 += group * A * 4 * W;
    w2 += group * A * C;
    load<L * W>([&](int e) { return k[e]; },
                [&](int e, float x) { room.items[e / W * WP + e % W] = x; });
    load<A * C>([&](int e) { return w2[e]; },
                [&](int e, float x) { room.v[e % A * CP + e / A] = x; });
    load<A * W>(
        [&](int e) {
            const float *row = w1 + e / W * 4 * W + e % W;
            return row[W] - row[2 * W] + row[3 * W] * room.own[e % W];
        },
        [&](int e, float x) { room.m[e % W * AP + e / W] = x; });
    load<A * W>(  // for the shift; where the first layer will be
        [&](int e) {
            const float *row = w1 + e / W * 4 * W + e % W;
            return (row[0] + row[2 * W]) * room.own[e % W];
        },
        [&](int e, float x) { room.one[e % W * AP + e / W] = x; });
    load<C>([&](int e) { return b2[group * C + e]; }, [&](int e, float x) { room.bias[e] = x; });
    load<C>([&](int e) { return w3[group * C + e]; }, [&](int e, float x) { room.out[e] = x; });
    __syncthreads();
    columns<W, A>(
        room.scratch, [&](int i, int j) { return room.one[i * AP + j]; },
        [&](int j, float sum) { room.s[j] = sum + b1[group * A + j]; });
    product<L, A, WP, 4, 4, true, false, false>(
        room.items, WP, room.m, AP,
        [&](int i, int j, float sum) { room.one[i * AP + j] = sigmoid(sum + room.s[j]); });
    __syncthreads();
    product<L, C, UP(A, 4), 2, 4, true, false, false>(
        room.one, AP, room.v, CP,
        [&](int i, int j, float sum) { room.two[i * CP + j] = sigmoid(sum + room.bias[j]); });
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_forward(
    const float *__restrict__ q, const float *__restrict__ k, const unsigned char *__restrict__ mask, const float *__restrict__ w1, const float *__restrict__ b1,
    const float *__restrict__ w2, const float *__restrict__ b2, const float *__restrict__ w3, float *attention, float *total,
    float *share, int batch)
{
    extern __shared__ float memory[];
    Room &room = *(Room *)memory;
    const long long at = blockIdx.x, group = at / batch;
    hidden_layers(room, q, k, w1, b1, w2, b2, w3, at, group);
    for (int i = threadIdx.x; i < L; i += THREADS) {
        float score = 0.0f;
        for (int c = 0; c < C; c++) score += room.two[i * CP + c] * room.out[c];
        room.real[i] = mask[at * L + i];
        room.share[i] = room.real[i] ? score : NOWHERE;
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // one warp does the softmax
        float most = NOWHERE, whole = 0.0f;
        for (int i = threadIdx.x; i < L; i += 32) most = fmaxf(most, room.share[i]);
        for (int n = 16; n; n /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, n));
        for (int i = threadIdx.x; i < L; i += 32) {
            const float p = room.share[i] == NOWHERE ? 0.0f : expf(room.share[i] - most);
            room.share[i] = p;
            whole += p;
        }
        for (int n = 16; n; n /= 2) whole += __shfl_xor_sync(~0u, whole, n);
        for (int i = threadIdx.x; i < L; i += 32) {
            if (whole > 0.0f) room.share[i] /= whole;
            share[at * L + i] = room.share[i];
        }
    }
    __syncthreads();
    columns<L, W>(
        room.scratch, [&](int i, int j) { return room.share[i] * room.items[i * WP + j]; },
        [&](int j, float sum) { attention[at * W + j] = sum; });
    columns<L, W>(
        room.scratch,
        [&](int i, int j) { return room.real[i] ? room.items[i * WP + j] : 0.0f; },
        [&](int j, float sum) { total[at * W + j] = sum; });
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward(
    const float *__restrict__ q, const float *__restrict__ k, const unsigned char *__restrict__ mask, const float *__restrict__ w1, const float *__restrict__ b1,
    const float *__restrict__ w2, const float *__restrict__ b2, const float *__restrict__ w3, const float *__restrict__ attention, const float *__restrict__ share,
    const float *__restrict__ d_attention, const float *__restrict__ d_total, float *d_q, float *d_k, float *shared,
    int batch)
{
    extern __shared__ float memory[];
    Room &room = *(Room *)memory;
    const long long at = blockIdx.x, group = at / batch;
    for (int e = threadIdx.x; e < W; e += THREADS) {
        room.pooled[e] = d_attention[at * W + e];
        room.summed[e] = d_total[at * W + e];
    }
    hidden_layers(room, q, k, w1, b1, w2, b2, w3, at, group);
    float *of_w1 = shared + at * (A * 4 * W + A + C * A + 2 * C), *of_b1 = of_w1 + A * 4 * W;
    float *of_w2 = of_b1 + A, *of_b2 = of_w2 + C * A, *of_w3 = of_b2 + C;
    if (threadIdx.x < 32) {
        float mean = 0.0f;
        for (int w = threadIdx.x; w < W; w += 32) mean += room.pooled[w] * attention[at * W + w];
        for (int n = 16; n; n /= 2) mean += __shfl_xor_sync(~0u, mean, n);
        if (threadIdx.x == 0) room.mean = mean;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < L; i += THREADS) {
        float along = 0.0f;
        for (int w = 0; w < W; w++) along += room.items[i * WP + w] * room.pooled[w];
        room.share[i] = share[at * L + i];
        room.real[i] = mask[at * L + i];
        room.ds[i] = room.share[i] * (along - room.mean);  // the gradient of the scores
    }
    __syncthreads();
    columns<L, C>(
        room.scratch, [&](int i, int j) { return room.ds[i] * room.two[i * CP + j]; },
        [&](int j, float sum) { of_w3[j] = sum; });
    for (int e = threadIdx.x; e < L * C; e += THREADS) {
        const int i = e / C, j = e % C;
        const float two = room.two[i * CP + j];
        room.two[i * CP + j] = room.ds[i] * room.out[j] * two * (1.0f - two);
    }
    __syncthreads();
    columns<L, C>(
        room.scratch, [&](int i, int j) { return room.two[i * CP + j]; },
        [&](int j, float sum) { of_b2[j] = sum; });
    product<A, C, LP, 4, 4, false, false, false>(
        room.one, AP, room.two, CP,
        [&](int i, int j, float sum) { of_w2[j * A + i] = sum; });
    __syncthreads();
    product<L, A, UP(C, 4), 4, 4, true, true, false>(
        room.two, CP, room.v, CP,
        [&](int i, int j, float sum) {
            const float one = room.one[i * AP + j];
            room.one[i * AP + j] = sum * one * (1.0f - one);
        });
    __syncthreads();
    columns<L, A>(
        room.scratch, [&](int i, int j) { return room.one[i * AP + j]; },
        [&](int j, float sum) { room.d_s[j] = sum, of_b1[j] = sum; });
    product<L, W, UP(A, 4), 3, 2, true, true, false>(
        room.one, AP, room.m, AP,
        [&](int i, int j, float sum) {
            sum += room.share[i] * room.pooled[j] + room.real[i] * room.summed[j];
            d_k[(at * L + i) * W + j] = sum;
        });
    product<W, A, LP, 4, 4, false, false, true>(
        room.items, WP, room.one, AP,
        [&](int i, int j, float sum) {
            float *to = of_w1 + j * 4 * W + i;
            const float straight = room.d_s[j] * room.own[i];
            room.v[i * AP + j] = sum;  // which nobody reads any more
            to[0] = straight, to[W] = sum, to[2 * W] = straight - sum, to[3 * W] = sum * room.own[i];
        });
    __syncthreads();
    w1 += group * A * 4 * W;
    load<A * W>(
        [&](int e) {
            const float *row = w1 + e / W * 4 * W + e % W;
            const int i = e / W, j = e % W;
            return room.v[j * AP + i] * row[3 * W] + room.d_s[i] * (row[0] + row[2 * W]);
        },
        [&](int e, float x) { room.m[e % W * AP + e / W] = x; });
    __syncthreads();
    columns<A, W>(
        room.scratch, [&](int i, int j) { return room.m[j * AP + i]; },
        [&](int j, float sum) { d_q[at * W + j] = sum; });
}

// The weights' gradients, added up over a client's examples.
extern "C" __global__ void attention_total(
    const float *shared, float *of_w1, float *of_b1, float *of_w2, float *of_b2, float *of_w3,
    int batch)
{
    constexpr int N1 = A * 4 * W, N2 = N1 + A, N3 = N2 + C * A, N4 = N3 + C, N5 = N4 + C;
    const int e = blockIdx.y * blockDim.x + threadIdx.x;
    const long long group = blockIdx.x;
    if (e >= N5) return;
    float sum = 0.0f;
    for (int b = 0; b < batch; b++) sum += shared[(group * batch + b) * N5 + e];
    if (e < N1) of_w1[group * N1 + e] = sum;
    else if (e < N2) of_b1[group * A + e - N1] = sum;
    else if (e < N3) of_w2[group * C * A + e - N2] = sum;
    else if (e < N4) of_b2[group * C + e - N3] = sum;
    else of_w3[group * C + e - N4] = sum;
}
