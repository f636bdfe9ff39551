// A recorded step: native functions, called one after another on arguments that depend on the number of rows.

#include <cstdint>
#include <utility>

namespace {

constexpr int INTEGERS = 32, FLOATS = 4;  // the most arguments of a function

// Its value is bases[base] + constant + slope * rows. bases[0] is 0.
struct Argument {
    int64_t base, constant, slope;
};

// `integers` arguments that are integers or addresses, then `floats` with the bits of a float in their constant.
struct Operation {
    const void* function;
    int64_t first, integers, floats;
};

// Calls a function of any signature. On x86-64 (System V ABI) and 64-bit ARM integers and floats are passed in registers
// of their own, the other integers on the stack in order, and whatever a function does not expect is ignored.
template <int... I, int... F>
void call(const void* function, const int64_t* integers, const double* floats, std::integer_sequence<int, I...>,
          std::integer_sequence<int, F...>) {
    using Any = void (*)(decltype(int64_t(I))..., decltype(double(F))...);
    ((Any)function)(integers[I]..., floats[F]...);
}

}  // namespace

// See Program: operations [count]; arguments of all operations; bases: the addresses of the program's storages.
extern "C" void run_program(const Operation* operations, int64_t count, const Argument* arguments, const int64_t* bases,
                            int64_t rows) {
    for (const Operation* operation = operations; operation < operations + count; operation++) {
        const Argument* own = arguments + operation->first;
        int64_t integers[INTEGERS] = {};
        double floats[FLOATS] = {};
        for (int64_t i = 0; i < operation->integers; i++, own++)
            integers[i] = bases[own->base] + own->constant + own->slope * rows;
        for (int64_t i = 0; i < operation->floats; i++, own++)
            floats[i] = __builtin_bit_cast(double, own->constant);
        call(operation->function, integers, floats, std::make_integer_sequence<int, INTEGERS>{},
             std::make_integer_sequence<int, FLOATS>{});
    }
}
