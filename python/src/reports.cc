// What a manager says about itself: statistics, explanations.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "kvblocks/lookup_explanation.h"
#include "python/src/binding.h"

namespace kvblocks::python {
namespace {

Result<"dict[str, int]"> ToDict(const MissCounts& counts) {
  nb::dict dict;
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    if (counts[i] == 0) continue;
    dict[nb::cast(MissReasonName(static_cast<MissReason>(i)))] = counts[i];
  }
  return dict;
}

std::string NameOf(MissReason reason) { return std::string(MissReasonName(reason)); }

LookupExplanation Explain(const PyManager& self, const PyRequest& request) {
  CheckUse(self, request);
  absl::StatusOr<LookupExplanation> why;
  {
    const ManagerUse use(self, true);
    why = ExplainLookup(*self.core, *request.core);
  }
  return Value(std::move(why));
}

void BindStats(nb::module_& module) {
  nb::class_<PrefixCacheStats>(
      module, "PrefixCacheStats",
      "Counts at admission since the last take_prefix_cache_stats, in tokens.")
      .def_ro("requests", &PrefixCacheStats::requests, "First admissions.")
      .def_ro("queries", &PrefixCacheStats::queries, "Tokens looked up.")
      .def_ro("hits", &PrefixCacheStats::hits, "Tokens hit.")
      .def_ro("preempted_requests", &PrefixCacheStats::preempted_requests,
              "Admissions after preemption.")
      .def_ro("preempted_queries", &PrefixCacheStats::preempted_queries)
      .def_ro("preempted_hits", &PrefixCacheStats::preempted_hits)
      .def_ro("reset", &PrefixCacheStats::reset, "The prefix cache was reset in between.")
      .def_prop_ro(
          "missed", [](const PrefixCacheStats& s) { return ToDict(s.missed); },
          "Missed tokens by reason, of admissions that were recorded with an explanation.")
      .def_prop_ro("preempted_missed",
                   [](const PrefixCacheStats& s) { return ToDict(s.preempted_missed); })
      .def("__repr__", [](const PrefixCacheStats& s) {
        return absl::StrCat("PrefixCacheStats(requests=", s.requests, ", queries=", s.queries,
                            ", hits=", s.hits, ", preempted_requests=", s.preempted_requests, ")");
      });

  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def(
          "record_prefix_cache_stats",
          [](PyManager& self, const PyRequest& request, int64_t num_hit_tokens,
             const LookupExplanation* why) {
            CheckUse(self, request);
            const MissCounts missed = why == nullptr ? MissCounts{} : why->TokensByReason();
            self.core->RecordPrefixCacheStats(*request.core, num_hit_tokens,
                                              why == nullptr ? nullptr : &missed);
          },
          nb::arg("request"), nb::arg("num_hit_tokens"), nb::arg("explanation").none() = nb::none(),
          "Counts an admission; with an explanation, also why the other tokens were missed.")
      .def(
          "take_prefix_cache_stats",
          [](PyManager& self) {
            CheckUse(self);
            return self.core->MakePrefixCacheStats();
          },
          "The counters, which then start again from zero.")
      .def("explain_lookup", &Explain, nb::arg("request"),
           "Where the tokens went that a look-up does not hit. Call it before allocate_slots. With "
           "lookup_history_blocks it tells evicted blocks from content never seen. O(tokens) "
           "probes.");
}

void BindExplanation(nb::module_& module) {
  nb::class_<Absence>(module, "Absence", "Why one block of one group is not in the cache.")
      .def_prop_ro("reason", [](const Absence& a) { return NameOf(a.reason); })
      .def_ro("num_blocks_since", &Absence::num_blocks_since,
              "Blocks the pool has handed out since it was removed, or None.")
      .def("__repr__",
           [](const Absence& a) { return absl::StrCat("Absence('", Describe(a), "')"); });
  nb::class_<MissedRun>(module, "MissedRun", "Consecutive tokens that were missed for one reason.")
      .def_prop_ro("reason", [](const MissedRun& r) { return NameOf(r.reason); })
      .def_prop_ro("meaning",
                   [](const MissedRun& r) { return std::string(MissReasonMeaning(r.reason)); })
      .def_ro("first_token", &MissedRun::first_token)
      .def_ro("num_tokens", &MissedRun::num_tokens)
      .def_prop_ro(
          "group",
          [](const MissedRun& r) {
            return r.group < 0 ? std::nullopt : std::optional<GroupId>(r.group);
          },
          "The group that decided, or None.")
      .def_prop_ro(
          "block",
          [](const MissedRun& r) {
            return r.block < 0 ? std::nullopt : std::optional<int64_t>(r.block);
          },
          "Position in its block table, or None.")
      .def_ro("absence", &MissedRun::absence)
      .def("__repr__", [](const MissedRun& r) {
        return absl::StrCat("MissedRun(reason='", NameOf(r.reason),
                            "', first_token=", r.first_token, ", num_tokens=", r.num_tokens, ")");
      });
  nb::class_<GroupReach>(module, "GroupReach", "What one group would hit if it were the only one.")
      .def_ro("group", &GroupReach::group)
      .def_ro("kind", &GroupReach::kind)
      .def_ro("num_hit_tokens", &GroupReach::num_hit_tokens)
      .def_ro("stop_block", &GroupReach::stop_block,
              "The first block that a longer hit lacks, or None.")
      .def_ro("absence", &GroupReach::absence);
  nb::class_<LookupExplanation>(module, "LookupExplanation",
                                "How many tokens of a look-up were hit, and why each other was "
                                "not. str() says it in a few lines.")
      .def_ro("num_tokens", &LookupExplanation::num_tokens)
      .def_ro("num_hit_tokens", &LookupExplanation::num_hit_tokens)
      .def_ro("hit_alignment", &LookupExplanation::hit_alignment)
      .def_ro("missed", &LookupExplanation::missed)
      .def_ro("groups", &LookupExplanation::groups)
      .def_ro("has_history", &LookupExplanation::has_history)
      .def_ro("num_removals_remembered", &LookupExplanation::num_removals_remembered)
      .def_prop_ro("tokens_by_reason",
                   [](const LookupExplanation& e) { return ToDict(e.TokensByReason()); })
      .def("__str__", &LookupExplanation::ToString);
}

}  // namespace

void BindReports(nb::module_& module) {
  BindExplanation(module);
  BindStats(module);
}

}  // namespace kvblocks::python
