// BindOp: an operation as a function of Python, from one list of its parameters.
//
//   BindOp<FuseKvArgs>(module, "fuse_kv", doc, Elements(&FuseKvArgs::k_new),
//                      Parameters(In("imp", &FuseKvArgs::imp), ...), Parameters());
//
// A parameter is one of parameters.h or of below. The last list is keyword-only; stream, workspace
// and threads follow by themselves. Values are taken in the order of the lists, then the function
// behind the documentation runs the operation and returns what Python gets.

#ifndef KVBLOCKS_PYTHON_SRC_ATTENTION_OP_BIND_H_
#define KVBLOCKS_PYTHON_SRC_ATTENTION_OP_BIND_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>

#include "python/src/attention/op_call.h"
#include "python/src/parameters.h"

namespace kvblocks::python {

// --- Kinds of parameters; `take` may want the call besides arguments and value ---

// Arrays that are read, and such that are written.
template <typename At>
auto TakeIn(const char* name, At at) {
  return [=](OpCall& call, auto& args, nb::handle array) {
    std::invoke(at, args) = call.In(name, array);
  };
}
template <typename At>
auto In(const char* name, At at) {
  return Take<Array>(nb::arg(name), TakeIn(name, at));
}
template <typename At>
auto OptionalIn(const char* name, At at) {
  return TakeOptional<Array>(name, TakeIn(name, at));
}
template <typename At>
auto TakeOut(const char* name, At at) {
  return [=](OpCall& call, auto& args, nb::handle array) {
    std::invoke(at, args) = call.Out(name, array);
  };
}
template <typename At>
auto Out(const char* name, At at) {
  return Take<Array>(nb::arg(name), TakeOut(name, at));
}
template <typename At>
auto OptionalOut(const char* name, At at) {
  return TakeOptional<Array>(name, TakeOut(name, at));
}
// An array of scales, or on the host a number.
template <typename At>
auto OptionalScale(const char* name, At at) {
  return TakeOptional<Argument<"Array | float">>(name,
                                                 [=](OpCall& call, auto& args, nb::handle value) {
                                                   std::invoke(at, args) = call.Scale(name, value);
                                                 });
}

template <typename At>
auto CacheIn(At at) {
  return Take<const PyKvCache&>(nb::arg("cache"),
                                [=](OpCall& call, auto& args, const PyKvCache& cache) {
                                  std::invoke(at, args) = call.In(cache);
                                });
}
template <typename At>
auto CacheOut(At at) {
  return Take<const PyKvCache&>(nb::arg("cache"),
                                [=](OpCall& call, auto& args, const PyKvCache& cache) {
                                  std::invoke(at, args) = call.Out("cache", cache);
                                });
}

// A bound on lengths that the arguments have at `of`, and on differences of starts. None: found on
// the host.
template <typename At, typename Of>
auto MaxLength(const char* name, At at, Of of) {
  return TakeOptional<std::optional<int64_t>>(
      name, [=](OpCall& call, auto& args, std::optional<int64_t> given) {
        std::invoke(at, args) = call.MaxLength(name, given, std::invoke(of, args));
      });
}
template <typename At, typename Of>
auto MaxDifference(const char* name, At at, Of of) {
  return TakeOptional<std::optional<int64_t>>(
      name, [=](OpCall& call, auto& args, std::optional<int64_t> given) {
        std::invoke(at, args) = call.MaxDifference(name, given, std::invoke(of, args));
      });
}

// The outputs that Python may leave out: OpCall::RunInto makes and returns them.
inline auto GivenOut() {
  return TakeOptional<Array>("out",
                             [](OpCall& call, auto&, nb::handle out) { call.given.out = out; });
}
inline auto GivenLse() {
  return Parameters(
      TakeOptional<Array>("lse", [](OpCall& call, auto&, nb::handle lse) { call.given.lse = lse; }),
      Take<bool>(nb::arg("return_lse") = false,
                 [](OpCall& call, auto&, bool value) { call.given.return_lse = value; }));
}

// --- What runs ---

// The operation, with so many multiplications per element of an array.
template <typename At>
auto Elements(At at, double work = 1) {
  return [=](OpCall& call, const auto& args) {
    call.Run(args, work * static_cast<double>(std::invoke(at, args).num_elements()));
  };
}

template <typename Args, bool kThreads = true, typename RunOp, typename... P, typename... K>
void BindOp(nb::module_& module, const char* name, const char* doc, RunOp run,
            const std::tuple<P...>& positional, const std::tuple<K...>& keyword_only) {
  const auto function = [name, run, takers = TakersOf(std::tuple_cat(positional, keyword_only))](
                            typename P::Value... p, typename K::Value... k, nb::handle stream,
                            PyWorkspace* workspace, PyThreadPool* threads) {
    OpCall call(name, {stream, workspace, threads});
    Args args;
    const auto give = [&](const auto& take, auto&& value) {
      if constexpr (std::is_invocable_v<decltype(take), OpCall&, Args&, decltype(value)>) {
        take(call, args, value);
      } else {
        take(args, value);
      }
    };
    TakeAll(takers, give, p..., k...);
    return run(call, args);
  };
  const auto define = [&](const auto& f, const auto&... threads) {
    const auto arguments = std::tuple_cat(
        ArgsOf(positional), std::tuple(nb::kw_only()), ArgsOf(keyword_only),
        std::tuple(nb::arg("stream") = nb::none(), nb::arg("workspace") = nb::none(), threads...));
    std::apply([&](const auto&... argument) { module.def(name, f, argument..., doc); }, arguments);
  };
  if constexpr (kThreads) {
    define(
        [function](typename P::Value... p, typename K::Value... k, Stream stream,
                   PyWorkspace* workspace, PyThreadPool* threads) {
          return function(p..., k..., stream, workspace, threads);
        },
        nb::arg("threads") = nb::none());
  } else {
    define([function](typename P::Value... p, typename K::Value... k, Stream stream,
                      PyWorkspace* workspace) {
      return function(p..., k..., stream, workspace, nullptr);
    });
  }
}

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_ATTENTION_OP_BIND_H_
