// Logistic regression's gradient over one field: a block has one client, a warp one example.
//
//   error = share (sigmoid(bias + sum of rows[id]) - label);  d_rows[id] += error, d_bias += error
//   ids (K, B, L), -1 where an example has nothing; label, weight (K, B); rows, d_rows (R); bias (K)

extern "C" __global__ void logistic_gradient(
    const float *rows, const float *bias, const long long *ids, const float *label,
    const float *weight, float *d_rows, float *d_bias, int batch, int length, int weighted)
{
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const long long client = blockIdx.x;
    float whole = weighted ? 0.0f : batch, sum = 0.0f;
    if (weighted)
        for (int b = 0; b < batch; b++) whole += weight[client * batch + b];
    whole = whole > 0.0f ? whole : 1.0f;
    for (int b = warp; b < batch; b += warps) {
        const long long at = client * batch + b;
        float score = 0.0f;
        for (int l = lane; l < length; l += 32) {
            const long long id = ids[at * length + l];
            if (id >= 0) score += rows[id];
        }
        for (int n = 16; n; n /= 2) score += __shfl_xor_sync(~0u, score, n);
        score = 1.0f / (1.0f + expf(-score - bias[client]));
        const float error = (score - label[at]) * (weighted ? weight[at] : 1.0f) / whole;
        for (int l = lane; l < length; l += 32) {
            const long long id = ids[at * length + l];
            if (id >= 0) atomicAdd(d_rows + id, error);
        }
        sum += error;
    }
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < warps; w++) sum += sums[w];
        d_bias[client] = sum;
    }
}
