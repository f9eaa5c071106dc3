// BindOp: an operation as a function of Python, from one list of its parameters.
//
//   BindOp<FuseKvArgs>(module, "fuse_kv", "None", doc, Elements(&FuseKvArgs::k_new),
//                      Parameters(In("imp", &FuseKvArgs::imp), ...), Parameters());
//
// A parameter says its name, its type and default as stubs have them, and where its value goes: a
// member, or whatever std::invoke makes of the arguments. The last list is keyword-only; stream,
// workspace and threads follow by themselves. Values are taken in the order of the lists, then the
// function behind the documentation runs the operation and returns what Python gets.

#ifndef KVBLOCKS_PYTHON_SRC_ATTENTION_OP_BIND_H_
#define KVBLOCKS_PYTHON_SRC_ATTENTION_OP_BIND_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "python/src/attention/op_call.h"

namespace kvblocks::python {

// take(call, arguments, value).
template <typename V, typename TakeValue>
struct ParameterTaker {
  using Value = V;
  TakeValue take;
};
template <typename V, typename Argument, typename TakeValue>
struct Parameter : ParameterTaker<V, TakeValue> {
  using Taker = ParameterTaker<V, TakeValue>;
  Argument arg;  // its name and default
  const char* type;
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

// --- Kinds of parameters ---

// Any, of a C++ type that nanobind converts.
template <typename V, typename Argument, typename TakeValue>
Parameter<V, Argument, TakeValue> Take(Argument arg, const char* type, TakeValue take) {
  return {{std::move(take)}, std::move(arg), type};
}
// None by default.
template <typename V, typename TakeValue>
auto TakeOptional(const char* name, const char* type, TakeValue take) {
  return Take<V>(nb::arg(name) = nb::none(), type, std::move(take));
}

// Arrays that are read, and such that are written.
template <typename At>
auto In(const char* name, At at) {
  return Take<nb::handle>(nb::arg(name), "Array", [=](OpCall& call, auto& args, nb::handle array) {
    std::invoke(at, args) = call.In(name, array);
  });
}
template <typename At>
auto OptionalIn(const char* name, At at) {
  return TakeOptional<nb::handle>(name, "Array | None", In(name, at).take);
}
template <typename At>
auto Out(const char* name, At at) {
  return Take<nb::handle>(nb::arg(name), "Array", [=](OpCall& call, auto& args, nb::handle array) {
    std::invoke(at, args) = call.Out(name, array);
  });
}
template <typename At>
auto OptionalOut(const char* name, At at) {
  return TakeOptional<nb::handle>(name, "Array | None", Out(name, at).take);
}
// An array of scales, or on the host a number.
template <typename At>
auto OptionalScale(const char* name, At at) {
  return TakeOptional<nb::handle>(name, "Array | float | None",
                                  [=](OpCall& call, auto& args, nb::handle value) {
                                    std::invoke(at, args) = call.Scale(name, value);
                                  });
}

template <typename At>
auto CacheIn(At at) {
  return Take<const PyKvCache&>(nb::arg("cache"), "KVCache",
                                [=](OpCall& call, auto& args, const PyKvCache& cache) {
                                  std::invoke(at, args) = call.In(cache);
                                });
}
template <typename At>
auto CacheOut(At at) {
  return Take<const PyKvCache&>(nb::arg("cache"), "KVCache",
                                [=](OpCall& call, auto& args, const PyKvCache& cache) {
                                  std::invoke(at, args) = call.Out("cache", cache);
                                });
}

// Numbers; the member may be of a narrower type.
template <typename V, typename Argument, typename At>
auto TakeNumber(Argument arg, At at) {
  const char* type = std::is_same_v<V, bool> ? "bool" : std::is_integral_v<V> ? "int" : "float";
  return Take<V>(std::move(arg), type, [=](OpCall&, auto& args, V value) {
    auto& to = std::invoke(at, args);
    to = static_cast<std::remove_reference_t<decltype(to)>>(value);
  });
}
template <typename V, typename At>
auto Number(const char* name, At at) {
  return TakeNumber<V>(nb::arg(name), at);
}
template <typename V, typename At>
auto Number(const char* name, At at, V fallback) {
  return TakeNumber<V>(nb::arg(name) = fallback, at);
}

// A bound on lengths that the arguments have at `of`, and on differences of starts. None: found on
// the host.
template <typename At, typename Of>
auto MaxLength(const char* name, At at, Of of) {
  return TakeOptional<std::optional<int64_t>>(
      name, "int | None", [=](OpCall& call, auto& args, std::optional<int64_t> given) {
        std::invoke(at, args) = call.MaxLength(name, given, std::invoke(of, args));
      });
}
template <typename At, typename Of>
auto MaxDifference(const char* name, At at, Of of) {
  return TakeOptional<std::optional<int64_t>>(
      name, "int | None", [=](OpCall& call, auto& args, std::optional<int64_t> given) {
        std::invoke(at, args) = call.MaxDifference(name, given, std::invoke(of, args));
      });
}

// The outputs that Python may leave out: OpCall::RunInto makes and returns them.
inline auto GivenOut() {
  return TakeOptional<nb::handle>(
      "out", "Array | None", [](OpCall& call, auto&, nb::handle out) { call.given.out = out; });
}
inline auto GivenLse() {
  return Parameters(
      TakeOptional<nb::handle>("lse", "Array | None",
                               [](OpCall& call, auto&, nb::handle lse) { call.given.lse = lse; }),
      Take<bool>(nb::arg("return_lse") = false, "bool",
                 [](OpCall& call, auto&, bool value) { call.given.return_lse = value; }));
}

// --- What runs ---

// The operation, with so many multiplications per element of an array.
template <typename At>
auto Elements(At at, double work = 1) {
  return [=](OpCall& call, const auto& args) {
    call.Run(args, work * static_cast<double>(std::invoke(at, args).num_elements()));
    return nb::object(nb::none());
  };
}

template <typename Args, typename... P>
void TakeAll(OpCall& call, Args& args, const std::tuple<P...>& takers,
             typename P::Value... values) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (std::get<kIndex>(takers).take(call, args, values), ...);
  }
  (std::index_sequence_for<P...>());
}

template <typename P>
void AppendTo(std::string* signature, const P& parameter) {
  absl::StrAppend(signature, signature->ends_with('(') ? "" : ", ", parameter.arg.name_, ": ",
                  parameter.type);
  if constexpr (requires { parameter.arg.value; }) {
    absl::StrAppend(signature, " = ", nb::repr(parameter.arg.value).c_str());
  }
}

template <typename Args, bool kThreads = true, typename RunOp, typename... P, typename... K>
void BindOp(nb::module_& module, const char* name, const char* returns, const char* doc, RunOp run,
            const std::tuple<P...>& positional, const std::tuple<K...>& keyword_only) {
  std::string signature = absl::StrCat("def ", name, "(");
  const auto append = [&](const auto&... parameters) { (AppendTo(&signature, parameters), ...); };
  std::apply(append, positional);
  absl::StrAppend(&signature, ", *");
  std::apply(append, keyword_only);
  absl::StrAppend(&signature, ", stream: Stream = None, workspace: Workspace | None = None",
                  kThreads ? ", threads: ThreadPool | None = None" : "", ") -> ", returns);
  const auto function = [name, run, first = std::tuple<typename P::Taker...>(positional),
                         second = std::tuple<typename K::Taker...>(keyword_only)](
                            typename P::Value... p, typename K::Value... k, nb::handle stream,
                            PyWorkspace* workspace, PyThreadPool* threads) -> nb::object {
    OpCall call(name, {stream, workspace, threads});
    Args args;
    TakeAll(call, args, first, p...);
    TakeAll(call, args, second, k...);
    return run(call, args);
  };
  const auto define = [&](const auto& f, const auto&... more) {
    std::apply(
        [&](const auto&... p) {
          std::apply(
              [&](const auto&... k) {
                module.def(name, f, p.arg..., nb::kw_only(), k.arg...,
                           nb::arg("stream") = nb::none(), nb::arg("workspace") = nb::none(),
                           more..., nb::sig(signature.c_str()), doc);
              },
              keyword_only);
        },
        positional);
  };
  if constexpr (kThreads) {
    define(function, nb::arg("threads") = nb::none());
  } else {
    define([function](typename P::Value... p, typename K::Value... k, nb::handle stream,
                      PyWorkspace* workspace) {
      return function(p..., k..., stream, workspace, nullptr);
    });
  }
}

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_ATTENTION_OP_BIND_H_
