// The time loop of an LSTM: a block walks through time with up to BT examples of one client.
//
// The client's recurrent weights stay in registers all the while: thread j of the forward kernel
// has row j of W, thread (gate p, unit u) of the backward kernel column u of gate p's rows. What a
// step hands to the next goes through shared memory, which all threads read at the same address.
// Arithmetic is plain float32. Compiled with H (units), BT (examples) and THREADS defined.
//
//   gates (G, T, B, 4H) by strides; weight (G, 4H, H); first, cell (G, B, H)
//   hidden, cells (G, T, B, H); active, slope (G, T, B, 4H)

#define HP ((H + 3) / 4 * 4)                              // units, filled up for loads of four
#define EACH ((BT * H + THREADS - 1) / THREADS)           // (example, unit) pairs of a thread

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_forward(
    const float *gates, int time_stride, int group_stride, const float *weight, const float *first,
    const float *cell, float *hidden, float *cells, float *active, int steps, int batch)
{
    __shared__ float4 before[BT][HP / 4];                 // the hidden state of the step before
    __shared__ float now[BT][4 * H];                      // the gates of this one
    const int row = threadIdx.x, low = blockIdx.y * BT, count = min(BT, batch - low);
    const long long group = blockIdx.x;
    const bool mine = row < 4 * H;
    float w[HP], c[EACH], next[BT];
    for (int e = row; e < BT * HP; e += THREADS) ((float *)before)[e] = 0.0f;
    weight += (group * 4 * H + row) * H;
#pragma unroll
    for (int k = 0; k < HP; k++) w[k] = mine && k < H ? weight[k] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int e = row + n * THREADS, b = e / H, u = e % H;
        c[n] = 0.0f;
        if (b < count) {
            const long long at = (group * batch + low + b) * H + u;
            c[n] = cell[at];
            ((float *)before[b])[u] = first[at];
        }
    }
    gates += group * group_stride + (long long)low * 4 * H + row;
    hidden += (group * steps * batch + low) * H;
    cells += (group * steps * batch + low) * H;
    active += (group * steps * batch + low) * 4 * H + row;
#pragma unroll
    for (int b = 0; b < BT; b++) next[b] = mine && b < count ? gates[b * 4 * H] : 0.0f;
    __syncthreads();
    for (int t = 0; t < steps; t++) {
        float sum[BT];
#pragma unroll
        for (int b = 0; b < BT; b++) sum[b] = next[b];
        gates += time_stride;
        if (t + 1 < steps)                                // on its way while this step is computed
#pragma unroll
            for (int b = 0; b < BT; b++) next[b] = mine && b < count ? gates[b * 4 * H] : 0.0f;
#pragma unroll
        for (int k = 0; k < HP / 4; k++)
#pragma unroll
            for (int b = 0; b < BT; b++) {
                const float4 h = before[b][k];
                sum[b] = fmaf(w[4 * k], h.x, sum[b]);
                sum[b] = fmaf(w[4 * k + 1], h.y, sum[b]);
                sum[b] = fmaf(w[4 * k + 2], h.z, sum[b]);
                sum[b] = fmaf(w[4 * k + 3], h.w, sum[b]);
            }
        if (mine)
#pragma unroll
            for (int b = 0; b < BT; b++) {
                const float a = row / H == 2 ? tanhf(sum[b]) : sigmoid(sum[b]);
                now[b][row] = a;
                if (b < count) active[b * 4 * H] = a;
            }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int e = row + n * THREADS, b = e / H, u = e % H;
            if (b < count) {
                c[n] = now[b][H + u] * c[n] + now[b][u] * now[b][2 * H + u];
                const float h = now[b][3 * H + u] * tanhf(c[n]);
                ((float *)before[b])[u] = h;
                hidden[b * H + u] = h;
                cells[b * H + u] = c[n];
            }
        }
        __syncthreads();
        hidden += batch * H;
        cells += batch * H;
        active += batch * 4 * H;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_backward(
    const float *active, const float *weight, const float *first_cell, const float *cells,
    const float *above, int time_stride, int group_stride, const float *last_cell, float *slope,
    float *d_first, float *d_cell, int steps, int batch)
{
    __shared__ float4 now[BT][4][HP / 4];                 // the gradient of this step's gates
    __shared__ float part[4][BT][H];                      // its product with each gate's rows of W
    const int low = blockIdx.y * BT, count = min(BT, batch - low);
    const int p = threadIdx.x / H, own = threadIdx.x % H;
    const long long group = blockIdx.x;
    float w[HP], dh[EACH], dc[EACH];
    float i[EACH], f[EACH], g[EACH], o[EACH], c[EACH], old[EACH];  // of the step that comes next
    for (int e = threadIdx.x; e < BT * 4 * HP; e += THREADS) ((float *)now)[e] = 0.0f;
    weight += (group * 4 + p) * H * H + own;
#pragma unroll
    for (int j = 0; j < HP; j++) w[j] = p < 4 && j < H ? weight[j * H] : 0.0f;
    active += ((group * steps + steps - 1) * batch + low) * 4 * H;
    slope += ((group * steps + steps - 1) * batch + low) * 4 * H;
    cells += ((group * steps + steps - 1) * batch + low) * H;
    above += group * group_stride + (long long)(steps - 1) * time_stride + (long long)low * H;
    first_cell += (group * batch + low) * H;
    last_cell += (group * batch + low) * H;
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int e = threadIdx.x + n * THREADS, b = e / H, u = e % H;
        dh[n] = dc[n] = i[n] = f[n] = g[n] = o[n] = c[n] = old[n] = 0.0f;
        if (b < count) {
            const float *a = active + b * 4 * H + u;
            i[n] = a[0], f[n] = a[H], g[n] = a[2 * H], o[n] = a[3 * H];
            c[n] = cells[e];
            old[n] = steps > 1 ? cells[e - batch * H] : first_cell[e];
            dh[n] = above[e];
            dc[n] = last_cell[e];
        }
    }
    __syncthreads();
    for (int t = steps - 1; t >= 0; t--) {
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int e = threadIdx.x + n * THREADS, b = e / H, u = e % H;
            if (b < count) {
                const float tanh_c = tanhf(c[n]);
                dc[n] += dh[n] * o[n] * (1.0f - tanh_c * tanh_c);
                const float di = dc[n] * g[n] * i[n] * (1.0f - i[n]);
                const float df = dc[n] * old[n] * f[n] * (1.0f - f[n]);
                const float dg = dc[n] * i[n] * (1.0f - g[n] * g[n]);
                const float d_o = dh[n] * tanh_c * o[n] * (1.0f - o[n]);
                ((float *)now[b][0])[u] = di, ((float *)now[b][1])[u] = df;
                ((float *)now[b][2])[u] = dg, ((float *)now[b][3])[u] = d_o;
                float *s = slope + b * 4 * H + u;
                s[0] = di, s[H] = df, s[2 * H] = dg, s[3 * H] = d_o;
                dc[n] *= f[n];
            }
        }
        active -= batch * 4 * H;
        slope -= batch * 4 * H;
        cells -= batch * H;
        above -= time_stride;
#pragma unroll
        for (int n = 0; n < EACH; n++) {                  // on its way while the product is made
            const int e = threadIdx.x + n * THREADS, b = e / H, u = e % H;
            dh[n] = 0.0f;
            if (t > 0 && b < count) {
                const float *a = active + b * 4 * H + u;
                i[n] = a[0], f[n] = a[H], g[n] = a[2 * H], o[n] = a[3 * H];
                c[n] = cells[e];
                old[n] = t > 1 ? cells[e - batch * H] : first_cell[e];
                dh[n] = above[e];
            }
        }
        __syncthreads();
        if (p < 4) {
            float sum[BT];
#pragma unroll
            for (int b = 0; b < BT; b++) sum[b] = 0.0f;
#pragma unroll
            for (int j = 0; j < HP / 4; j++)
#pragma unroll
                for (int b = 0; b < BT; b++) {
                    const float4 d = now[b][p][j];
                    sum[b] = fmaf(w[4 * j], d.x, sum[b]);
                    sum[b] = fmaf(w[4 * j + 1], d.y, sum[b]);
                    sum[b] = fmaf(w[4 * j + 2], d.z, sum[b]);
                    sum[b] = fmaf(w[4 * j + 3], d.w, sum[b]);
                }
#pragma unroll
            for (int b = 0; b < BT; b++) part[p][b][own] = sum[b];
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int e = threadIdx.x + n * THREADS, b = e / H, u = e % H;
            if (b < count) dh[n] += part[0][b][u] + part[1][b][u] + part[2][b][u] + part[3][b][u];
        }
    }
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int e = threadIdx.x + n * THREADS, b = e / H;
        if (b < count) {
            d_first[(group * batch + low) * H + e] = dh[n];
            d_cell[(group * batch + low) * H + e] = dc[n];
        }
    }
}
