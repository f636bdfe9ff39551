// See threads.h. All state is in atomics: a thread that is late may look at a task that has ended.

#include "threads.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto SPINNING = std::chrono::microseconds(10);  // before a waiting thread leaves its CPU to others
constexpr auto AWAKE = std::chrono::microseconds(200);    // before it sleeps
constexpr int LOOKS = 16;                                 // between two looks at the clock

// Waits until `done()`, without sleeping; returns false once AWAKE has passed.
template <typename Done>
bool await(const Done& done) {
    const auto start = Clock::now();
    for (auto waited = Clock::duration::zero(); waited < AWAKE; waited = Clock::now() - start)
        for (int look = 0; look < LOOKS; look++) {
            if (done()) return true;
            waited < SPINNING ? _mm_pause() : (void)sched_yield();
        }
    return false;
}

class Threads {
  public:
    // To be called by one thread at a time, which has `using_threads`.
    void run(int64_t pieces, void (*function)(const void*, int64_t), const void* task, int helpers) {
        for (; started_ < helpers; started_++) start(started_);
        helpers_.store(helpers, std::memory_order_relaxed);
        function_.store(function, std::memory_order_relaxed);
        task_.store(task, std::memory_order_relaxed);
        pieces_.store(pieces, std::memory_order_relaxed);
        unfinished_.store(pieces, std::memory_order_relaxed);
        const uint32_t number = number_.load(std::memory_order_relaxed) + 1;
        unclaimed_.store(uint64_t(number) << 32 | uint64_t(pieces), std::memory_order_release);
        number_.store(number);
        if (sleeping_.load()) wake(int(std::min<int64_t>(helpers, pieces - 1)));
        claim_pieces(number);
        while (!await([&] { return !unfinished_.load(std::memory_order_acquire); })) continue;
    }

    std::mutex using_threads;

  private:
    void start(int helper) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the process's other threads
        std::thread thread([this, helper, seen = number_.load()]() mutable {
            for (;;) {
                seen = next_task(seen);
                if (helper < helpers_.load(std::memory_order_relaxed)) claim_pieces(seen);
            }
        });
        pthread_setname_np(thread.native_handle(), "kernels");
        thread.detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    // Runs pieces of task `number` until all are claimed.
    void claim_pieces(uint32_t number) {
        uint64_t unclaimed = unclaimed_.load(std::memory_order_acquire);
        while (unclaimed >> 32 == number && uint32_t(unclaimed)) {
            // If the piece can be claimed, its task has not ended, and these are the task's.
            const auto function = function_.load(std::memory_order_relaxed);
            const void* task = task_.load(std::memory_order_relaxed);
            const int64_t piece = pieces_.load(std::memory_order_relaxed) - uint32_t(unclaimed);
            if (!unclaimed_.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel,
                                                  std::memory_order_acquire))
                continue;
            function(task, piece);
            unfinished_.fetch_sub(1, std::memory_order_acq_rel);
            unclaimed = unclaimed_.load(std::memory_order_acquire);
        }
    }

    // Waits for a task after number `seen`, and returns the latest one's number.
    uint32_t next_task(uint32_t seen) {
        uint32_t number;
        const auto published = [&] { return (number = number_.load(std::memory_order_acquire)) != seen; };
        while (!await(published)) {
            sleeping_.fetch_add(1);
            syscall(SYS_futex, &number_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
            sleeping_.fetch_sub(1);
        }
        return number;
    }

    void wake(int most) { syscall(SYS_futex, &number_, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0); }

    int started_ = 0;
    std::atomic<uint32_t> number_ = 0;  // of the latest task; what threads sleep on
    std::atomic<int> sleeping_ = 0, helpers_ = 0;
    alignas(64) std::atomic<uint64_t> unclaimed_ = 0;  // the task's number, and in the low half its unclaimed pieces
    alignas(64) std::atomic<int64_t> unfinished_ = 0;
    std::atomic<int64_t> pieces_ = 0;
    std::atomic<void (*)(const void*, int64_t)> function_ = nullptr;
    std::atomic<const void*> task_ = nullptr;
};

// Never destroyed, since threads use it until the process ends. A child of a fork has none of the threads.
Threads* threads = new Threads;
[[maybe_unused]] const int forgotten_by_forks =
    pthread_atfork(nullptr, nullptr, [] { threads = new Threads; });

thread_local bool in_piece = false;

}  // namespace

int num_threads() { return omp_get_max_threads(); }

void run_pieces(int64_t pieces, void (*run)(const void*, int64_t), const void* task) {
    const int helpers = num_threads() - 1;
    std::unique_lock<std::mutex> own(threads->using_threads, std::defer_lock);
    if (in_piece || pieces < 2 || helpers < 1 || !own.try_lock()) {
        for (int64_t piece = 0; piece < pieces; piece++) run(task, piece);
        return;
    }
    in_piece = true;
    threads->run(pieces, run, task, helpers);
    in_piece = false;
}
