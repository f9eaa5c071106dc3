// What stubs call the types of arguments and results, and functions of Python whose arguments fill
// a struct.
//
//   Define(manager, "allocate_slots", &AllocateSlots, doc, std::tuple(nb::arg("request")),
//          Parameters(Required("num_new_tokens", &AllocateSlotsParams::num_new_tokens), ...),
//          Parameters(Field("reserved_blocks", &AllocateSlotsParams::reserved_blocks), ...));
//
// A parameter says its name, its default and where its value goes. The signature follows from the
// C++ types of the values.

#ifndef KVBLOCKS_PYTHON_SRC_PARAMETERS_H_
#define KVBLOCKS_PYTHON_SRC_PARAMETERS_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace kvblocks::python {

namespace nb = nanobind;

// --- Words of the stubs ---

template <size_t kSize>
struct Letters {
  char text[kSize];
  consteval Letters(const char (&from)[kSize]) { std::copy_n(from, kSize, text); }
};
// Any object, which stubs call by this text.
template <Letters kName, typename Base>
struct Named : Base {
  static constexpr auto Name = nb::detail::const_name(kName.text);
  using Base::Base;
  Named(const Base& other) : Base(other) {}
  static bool check_(nb::handle) { return true; }
};
template <Letters kName>
using Argument = Named<kName, nb::handle>;
template <Letters kName>
using Result = Named<kName, nb::object>;

using Int32Like = Argument<"Int32Like">;
using Hashes = Argument<"Hashes">;
using AnyObject = Result<"Any">;
using Int32Array = Result<"NDArray[numpy.int32]">;

// --- Parameters ---

template <typename V, typename TakeValue>
struct ParameterTaker {
  using Value = V;
  TakeValue take;
};
template <typename V, typename NameAndDefault, typename TakeValue>
struct Parameter : ParameterTaker<V, TakeValue> {
  using Taker = ParameterTaker<V, TakeValue>;
  NameAndDefault arg;
};
template <typename... P>
std::tuple<P...> Parameters(P... parameters) {
  return {std::move(parameters)...};
}

// Where a value goes: a member of a member, and a member of what another place finds.
#define KVBLOCKS_AT(member) \
  [=](auto& a) -> auto& { return a.member; }
#define KVBLOCKS_OF(place, member) \
  [=](auto& a) -> auto& { return place(a).member; }

// `take(struct, value)` puts a value where it belongs. It gets the value as the call got it.
template <typename V, typename NameAndDefault, typename TakeValue>
Parameter<V, NameAndDefault, TakeValue> Take(NameAndDefault arg, TakeValue take) {
  return {{std::move(take)}, std::move(arg)};
}
// None by default.
template <typename V, typename TakeValue>
auto TakeOptional(const char* name, TakeValue take) {
  return Take<V>(nb::arg(name) = nb::none(), std::move(take));
}
// A value that is assigned; what it goes to may be of a narrower type.
template <typename V, typename NameAndDefault, typename At>
auto Assign(NameAndDefault arg, At at) {
  return Take<V>(std::move(arg), [=](auto& args, V value) {
    auto& to = std::invoke(at, args);
    to = static_cast<std::remove_reference_t<decltype(to)>>(std::move(value));
  });
}
template <typename V, typename At>
auto Optional(const char* name, At at) {
  return Assign<V>(nb::arg(name) = nb::none(), at);
}
template <typename V, typename At>
auto Number(const char* name, At at) {
  return Assign<V>(nb::arg(name), at);
}
template <typename V, typename At>
auto Number(const char* name, At at, V fallback) {
  return Assign<V>(nb::arg(name) = fallback, at);
}
template <typename At>
auto Text(const char* name, At at, const char* fallback) {
  return Assign<std::string>(nb::arg(name) = fallback, at);
}
// A member of the struct, and one whose default is the struct's own.
template <typename S, typename V>
auto Required(const char* name, V S::*member) {
  return Assign<V>(nb::arg(name), member);
}
template <typename S, typename V>
auto Field(const char* name, V S::*member) {
  return Assign<V>(nb::arg(name) = S().*member, member);
}
// One that a text stands for; `parse` may raise.
template <typename At, typename Parse>
auto Word(const char* name, const char* fallback, At at, Parse parse) {
  return Take<std::string>(nb::arg(name) = fallback, [=](auto& args, const std::string& word) {
    std::invoke(at, args) = parse(word);
  });
}

template <typename... P>
std::tuple<typename P::Taker...> TakersOf(const std::tuple<P...>& parameters) {
  return parameters;
}
template <typename... P>
auto ArgsOf(const std::tuple<P...>& parameters) {
  return std::apply([](const auto&... parameter) { return std::tuple(parameter.arg...); },
                    parameters);
}
// Calls give(take, value) for each.
template <typename... T, typename Give>
void TakeAll(const std::tuple<T...>& takers, const Give& give, typename T::Value... values) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (give(std::get<kIndex>(takers).take, std::forward<typename T::Value>(values)), ...);
  }
  (std::index_sequence_for<T...>());
}

// Defines `function`, whose first argument is a struct, for Python: first its other arguments (of a
// method self, which `direct` leaves out), then the struct's parameters, the last list by keyword.
template <typename Target, typename R, typename Args, typename... A, typename... D, typename... P,
          typename... K>
void Define(Target& target, const char* name, R (*function)(Args, A...), const char* doc,
            const std::tuple<D...>& direct, const std::tuple<P...>& positional,
            const std::tuple<K...>& keyword_only) {
  const auto call = [function, takers = TakersOf(std::tuple_cat(positional, keyword_only))](
                        A... a, typename P::Value... p, typename K::Value... k) -> R {
    std::remove_cvref_t<Args> args{};
    const auto give = [&](const auto& take, auto&& value) {
      take(args, std::forward<decltype(value)>(value));
    };
    TakeAll(takers, give, std::forward<typename P::Value>(p)...,
            std::forward<typename K::Value>(k)...);
    return function(std::forward<Args>(args), std::forward<A>(a)...);
  };
  const auto define = [&](const auto&... extra) { target.def(name, call, extra..., doc); };
  std::apply(define, std::tuple_cat(direct, ArgsOf(positional), std::tuple(nb::kw_only()),
                                    ArgsOf(keyword_only)));
}

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_PARAMETERS_H_
