// The threads of the kernels. A kernel is cut into pieces, which the calling thread and the others claim one by one, so
// that a thread without a CPU delays only the piece that it has claimed, and the calling thread can do all of them.
//
// A thread that waits first spins, then leaves its CPU to others between two looks, and then sleeps. Threads of OpenMP
// can't be used for this: their pieces are assigned beforehand or by a barrier, at which they spin for milliseconds
// beside another process, or sleep after a microsecond.
#pragma once

#include <algorithm>
#include <cstdint>

// Returns the number of threads that compute, this one included: that of torch, which has OpenMP's.
int num_threads();

// Runs run(task, piece) for all pieces below `pieces` and returns when all are done. In a piece, and where another thread
// of the process is using the threads, all run here.
void run_pieces(int64_t pieces, void (*run)(const void* task, int64_t piece), const void* task);

// Calls task(i) for all i below `count`. Each call should take some microseconds.
template <typename Task>
void for_each_in_parallel(int64_t count, const Task& task) {
    run_pieces(count, [](const void* given, int64_t piece) { (*(const Task*)given)(piece); }, &task);
}

// Calls task(begin, end) for successive parts of [0, count), about equal ones if they are worth more threads.
template <typename Task>
void for_parts_in_parallel(int64_t count, bool worth_threads, const Task& task) {
    constexpr int64_t PIECES_OF_A_THREAD = 4;  // enough that none waits for long for the one that claimed the last
    const int64_t pieces = worth_threads ? std::min(count, num_threads() * PIECES_OF_A_THREAD) : 1;
    if (pieces <= 1) return task(int64_t(0), count);
    for_each_in_parallel(pieces, [&](int64_t piece) { task(count * piece / pieces, count * (piece + 1) / pieces); });
}

// Calls task(i) for all i below `count`, in such parts.
template <typename Task>
void for_range_in_parallel(int64_t count, bool worth_threads, const Task& task) {
    for_parts_in_parallel(count, worth_threads, [&](int64_t i, int64_t end) {
        for (; i < end; i++) task(i);
    });
}
