// The index sets of some clients, one after another: entry r of the selection belongs to the client
// whose end is the first beyond r.  ends (K): where each client's entries end; shift (K): from there
// to its entries in the whole index.

extern "C" __global__ void select_entries(
    const long long *ends, const long long *shift, const long long *of_place,
    const long long *held, long long *owner, long long *source, long long *place, long long *ids,
    int clients, int size)
{
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= size) return;
    int low = 0, high = clients - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] > r) high = middle;
        else low = middle + 1;
    }
    const long long from = shift[low] + r, at = of_place[from];
    owner[r] = low, source[r] = from, place[r] = at, ids[r] = held[at];
}
