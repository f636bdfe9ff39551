// Computes on the kernels' threads, from two threads of its own at once: threads_check PROGRAMS OPERATIONS. Each program is
// that many operations, each of which continues with the results of the one before, as those of a model do. Ends with
// status 1 if a piece was computed twice, late or not at all.

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "threads.h"

bool run(int programs, int operations, int64_t size) {
    std::vector<int64_t> values(size);
    int64_t expected = 0;
    for (int program = 0; program < programs; program++)
        for (int operation = 0; operation < operations; operation++, expected++) {
            const int64_t count = 1 + (program + operation) % size;
            for_each_in_parallel(count, [&](int64_t i) { values[i]++; });
            for_parts_in_parallel(size - count, true, [&](int64_t begin, int64_t end) {
                for_each_in_parallel(end - begin, [&](int64_t i) { values[count + begin + i]++; });
            });
            for (int64_t value : values)
                if (value != expected + 1) return false;
        }
    return true;
}

int main(int, char** arguments) {
    const int programs = std::atoi(arguments[1]), operations = std::atoi(arguments[2]);
    bool beside = false;
    std::thread other([&] { beside = run(programs, operations, 7); });
    const bool here = run(programs, operations, 13);
    other.join();
    std::puts(here && beside ? "all pieces computed once" : "a piece was lost");
    return here && beside ? 0 : 1;
}
