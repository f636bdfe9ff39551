// The likeliest token of each row of logits.

#include <algorithm>
#include <cmath>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace {

constexpr int64_t PIECE = 1 << 13;  // logits of a row that one thread reads

// The largest of `count` numbers, NaN if there is one.
float largest_of(const float* numbers, int64_t count) {
    floats most = broadcast(-INFINITY), unordered = {};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const floats own = load(numbers + i);
        most = own > most ? own : most;
        unordered += own - own;  // NaN for an infinity too: see below
    }
    float result = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) result = std::max(result, most[lane]);
    bool checked = true;
    for (int lane = 0; lane < LANES; lane++) checked &= unordered[lane] == 0;
    for (; i < count; i++) {
        checked &= !std::isnan(numbers[i]);
        result = std::max(result, numbers[i]);
    }
    if (!checked && std::any_of(numbers, numbers + count, [](float one) { return std::isnan(one); })) return NAN;
    return result;
}

int64_t index_of(float value, const float* numbers) {
    int64_t i = 0;
    while (!(std::isnan(value) ? std::isnan(numbers[i]) : numbers[i] == value)) i++;
    return i;
}

}  // namespace

// tokens[i], largest[i]: the index of the first of the largest numbers of row i, and the number, as torch.max has them.
extern "C" void likeliest(int64_t* tokens, float* largest, const float* logits, int64_t rows, int64_t vocabulary,
                          int64_t stride) {
    const int64_t pieces = (vocabulary + PIECE - 1) / PIECE;
    std::vector<float> most(rows * pieces);
    for_each_in_parallel(rows * pieces, [&](int64_t item) {
        const int64_t begin = item % pieces * PIECE;
        most[item] = largest_of(logits + item / pieces * stride + begin, std::min(PIECE, vocabulary - begin));
    });
    for (int64_t row = 0; row < rows; row++) {
        const float* own = most.data() + row * pieces;
        largest[row] = largest_of(own, pieces);
        const int64_t begin = index_of(largest[row], own) * PIECE;
        tokens[row] = begin + index_of(largest[row], logits + row * stride + begin);
    }
}
