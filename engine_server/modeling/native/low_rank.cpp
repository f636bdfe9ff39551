// Low-rank updates of a product's results (LoRA, arXiv 2106.09685): a row's own adapter adds B (A x) to it. Sums are in
// float32 and in the order of the inputs and of the ranks, so that a row's bits depend on that row alone.

#include <numeric>
#include <vector>

#include "products.h"

namespace {

constexpr int PADDING = 32;  // rows of the tables are padded with zeros to a multiple of this number of elements
constexpr int ROWS = 4;      // rows of one adapter that are multiplied together
constexpr int SUMS = LANES;  // vectors of sums that stay in registers
constexpr int AHEAD = 512;   // bytes from a load to its prefetch

// Successive elements of a row in each lane: two bfloat16 are half of a word each, which widens them fastest.
template <typename T>
constexpr int ELEMENTS = std::is_same_v<T, bfloat16> ? 2 : 1;
template <typename T>
constexpr int STEP = LANES * ELEMENTS<T>;

inline void narrow(float* to, const floats (&parts)[1]) { store(to, parts[0]); }

inline void narrow(bfloat16* to, const floats (&parts)[2]) {
    *(any_words*)to = rounded_to_bfloat16(parts[0]) >> 16 | (rounded_to_bfloat16(parts[1]) & 0xffff0000);
}

template <typename T>
struct Adapters {
    const T* a;            // [slots, most, padded in]
    const T* b;            // [slots, most, padded out]
    const int32_t* ranks;  // [slots]: used rows of A and B; 0 for an adapter without this layer
    int64_t in, out, most;

    static int64_t padded(int64_t size) { return (size + PADDING - 1) / PADDING * PADDING; }
};

// Rows of one adapter: indices among the step's rows.
struct Group {
    const int32_t* rows;
    int64_t count;
    int32_t slot;
};

// Sorts rows by slot, and returns groups of at most ROWS. Rows without an adapter are in none.
std::vector<Group> grouped(std::vector<int32_t>& order, const int32_t* slots) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return slots[a] < slots[b]; });
    std::vector<Group> groups;
    for (size_t first = 0, next; first < order.size(); first = next) {
        const int32_t slot = slots[order[first]];
        for (next = first + 1; next < order.size() && next - first < ROWS && slots[order[next]] == slot;) next++;
        if (slot >= 0) groups.push_back({order.data() + first, int64_t(next - first), slot});
    }
    return groups;
}

// sums [COUNT, most] = inputs [COUNT, padded] times `rank` rows of A. inputs: widened, STEP elements after another.
template <int COUNT, typename T>
void shrink(float* sums, const float* inputs, const T* a, int64_t rank, int64_t padded, int64_t most) {
    constexpr int RANKS = SUMS / COUNT;
    for (int64_t first = 0; first < rank; first += RANKS) {
        const T* lines[RANKS];
        for (int j = 0; j < RANKS; j++) lines[j] = a + std::min(first + j, rank - 1) * padded;
        floats totals[SUMS] = {};
        for (int64_t i = 0; i < padded; i += STEP<T>) {
            floats values[COUNT][ELEMENTS<T>];
            for (int r = 0; r < COUNT; r++)
                for (int e = 0; e < ELEMENTS<T>; e++) values[r][e] = load(inputs + r * padded + i + e * LANES);
            for (int j = 0; j < RANKS; j++) {
                floats weights[ELEMENTS<T>];
                widen(weights, lines[j] + i);
                __builtin_prefetch((const char*)(lines[j] + i) + AHEAD);
                for (int r = 0; r < COUNT; r++)
                    for (int e = 0; e < ELEMENTS<T>; e++)
                        totals[r * RANKS + j] = fused(values[r][e], weights[e], totals[r * RANKS + j]);
            }
        }
        const floats results = ::sums(totals);
        for (int r = 0; r < COUNT; r++)
            for (int64_t j = 0; j < RANKS && first + j < rank; j++) sums[r * most + first + j] = results[r * RANKS + j];
    }
}

// Adds sums [COUNT, most] times `rank` rows of B to rows of `out`, from `output` on.
template <int COUNT, int VECTORS, typename T>
void expand_tile(T* const* out, const float* sums, const T* b, int64_t rank, int64_t output, const Adapters<T>& adapters) {
    const int64_t padded = adapters.padded(adapters.out);
    floats totals[COUNT][VECTORS][ELEMENTS<T>];
    for (int r = 0; r < COUNT; r++)
        for (int v = 0; v < VECTORS; v++) widen(totals[r][v], out[r] + output + v * STEP<T>);
    for (int64_t j = 0; j < rank; j++) {
        const T* line = b + j * padded + output;
        floats weights[VECTORS][ELEMENTS<T>];
        for (int v = 0; v < VECTORS; v++) {
            widen(weights[v], line + v * STEP<T>);
            __builtin_prefetch(line + (VECTORS + v) * STEP<T>);  // of the next tile
        }
        for (int r = 0; r < COUNT; r++) {
            const floats factor = broadcast(sums[r * adapters.most + j]);
            for (int v = 0; v < VECTORS; v++)
                for (int e = 0; e < ELEMENTS<T>; e++)
                    totals[r][v][e] = fused(factor, weights[v][e], totals[r][v][e]);
        }
    }
    for (int r = 0; r < COUNT; r++)
        for (int v = 0; v < VECTORS; v++) narrow(out[r] + output + v * STEP<T>, totals[r][v]);
}

template <int COUNT, typename T>
void expand(T* const* out, const float* sums, const T* b, int64_t rank, const Adapters<T>& adapters) {
    constexpr int VECTORS = SUMS / COUNT / ELEMENTS<T>;
    int64_t output = 0;
    for (; output + VECTORS * STEP<T> <= adapters.out; output += VECTORS * STEP<T>)
        expand_tile<COUNT, VECTORS>(out, sums, b, rank, output, adapters);
    for (; output + STEP<T> <= adapters.out; output += STEP<T>)
        expand_tile<COUNT, 1>(out, sums, b, rank, output, adapters);
    const int64_t rest = adapters.out - output;
    if (!rest) return;
    T last[COUNT][STEP<T>] = {}, *lines[COUNT];  // a vector would reach beyond the row
    for (int r = 0; r < COUNT; r++) {
        std::memcpy(last[r], out[r] + output, rest * sizeof(T));
        lines[r] = last[r] - output;
    }
    expand_tile<COUNT, 1>(lines, sums, b, rank, output, adapters);
    for (int r = 0; r < COUNT; r++) std::memcpy(out[r] + output, last[r], rest * sizeof(T));
}

// Widens a row to `inputs` [padded], as `shrink` reads it.
template <typename T>
void widen_row(float* inputs, const T* row, int64_t in, int64_t padded) {
    for (int64_t i = 0; i < padded; i += STEP<T>) {
        T rest[STEP<T>] = {};  // a vector would reach beyond the row
        if (i + STEP<T> > in) std::memcpy(rest, row + i, std::max<int64_t>(in - i, 0) * sizeof(T));
        floats parts[ELEMENTS<T>];
        widen(parts, i + STEP<T> > in ? rest : row + i);
        for (int e = 0; e < ELEMENTS<T>; e++) store(inputs + i + e * LANES, parts[e]);
    }
}

template <typename T>
void add(T* out, int64_t out_stride, const T* x, int64_t x_stride, const int32_t* slots, int64_t rows,
         const Adapters<T>& adapters) {
    const int64_t padded = adapters.padded(adapters.in);
    std::vector<int32_t> order(rows);
    const std::vector<Group> groups = grouped(order, slots);
    const bool worth_threads = rows * adapters.most * (adapters.in + adapters.out) > WORTH_A_THREAD;
    for_parts_in_parallel(groups.size(), worth_threads, [&](int64_t number, int64_t end) {
        std::vector<float> inputs(ROWS * padded), sums(ROWS * adapters.most);
        for (; number < end; number++) {
            const Group& group = groups[number];
            const int64_t rank = adapters.ranks[group.slot];
            if (!rank) continue;
            T* lines[ROWS];
            for (int64_t r = 0; r < group.count; r++) {
                lines[r] = out + group.rows[r] * out_stride;
                widen_row(inputs.data() + r * padded, x + group.rows[r] * x_stride, adapters.in, padded);
            }
            for_row_tiles<ROWS>(group.count, [&]<int COUNT>(int64_t, std::integral_constant<int, COUNT>) {
                shrink<COUNT>(sums.data(), inputs.data(), adapters.a + group.slot * adapters.most * padded, rank, padded,
                              adapters.most);
                expand<COUNT>(lines, sums.data(), adapters.b + group.slot * adapters.most * adapters.padded(adapters.out),
                              rank, adapters);
            });
        }
    });
}

}  // namespace

// See LowRankTable: adds to out [rows, outputs] the updates of x [rows, in]; strides in elements; slots int32 [rows], -1
// for a row without an adapter.
extern "C" void add_low_rank(int is_bfloat16, void* out, int64_t out_stride, const void* x, int64_t x_stride,
                             const int32_t* slots, const void* a, const void* b, const int32_t* ranks, int64_t rows,
                             int64_t in, int64_t outputs, int64_t most) {
    auto run = [&]<typename T>(T) {
        Adapters<T> adapters{(const T*)a, (const T*)b, ranks, in, outputs, most};
        add((T*)out, out_stride, (const T*)x, x_stride, slots, rows, adapters);
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}
