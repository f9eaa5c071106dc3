#include "sim/report/human_table.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/explanation.pb.h"
#include "sim/report/tier_section.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

std::string SecondsText(double seconds) { return absl::StrFormat("%.3f s", seconds); }

std::string ShareText(int64_t part, int64_t whole) {
  return whole == 0 ? "-" : Percent(static_cast<double>(part) / static_cast<double>(whole));
}

std::string NameOf(const pb::RequestName& name) {
  const std::string row = absl::StrCat(name.row());
  return name.id() == row ? absl::StrCat("request ", row)
                          : absl::StrCat("request ", Printable(name.id()), " (row ", row, ")");
}

const pb::MissCause* FindCause(const pb::MissCauses& misses, const std::string& name) {
  for (const pb::MissCause& cause : misses.causes()) {
    if (cause.cause() == name) return &cause;
  }
  return nullptr;
}

// --- All requests ---

void AddTotals(const pb::Report& replay, TextPage& text) {
  const pb::PromptTokens& prompt = replay.prompt_tokens();
  text.Heading(absl::StrFormat("%-18s %13s %9s %11s %11s", "prompt tokens", "tokens", "share",
                               "blocks", "at resumes"));
  const auto row = [&](const std::string& name, int64_t tokens, int64_t blocks, int64_t resumes,
                       const std::string& meaning) {
    text.Plain(absl::StrFormat(
        "%-18s %13s %9s %11s %11s", name, WithThousands(tokens), ShareText(tokens, prompt.known()),
        blocks < 0 ? "" : WithThousands(blocks), resumes < 0 ? "" : WithThousands(resumes)));
    if (!meaning.empty()) text.Plain(absl::StrCat("    ", meaning));
  };
  row("hit", prompt.hit(), replay.whole_run().full_block_hit_rate().numerator(), -1, "");
  for (const pb::MissCause& cause : replay.first_admission_misses().causes()) {
    const pb::MissCause* resumed = FindCause(replay.resume_misses(), cause.cause());
    const int64_t at_resumes = resumed == nullptr ? 0 : resumed->blocks();
    if (cause.blocks() == 0 && at_resumes == 0) continue;
    row(cause.cause(), cause.tokens(), cause.blocks(), at_resumes, cause.meaning());
    const pb::EvictedReuse& reuse = replay.first_admission_misses().evicted();
    if (cause.cause() == "evicted" && reuse.blocks() > 0) {
      text.Plain(absl::StrCat("    last used ", SecondsText(reuse.p50_age_s()), " / ",
                            Plural(reuse.p50_distance_blocks(), "block"),
                            " earlier at the median, ", SecondsText(reuse.max_age_s()), " / ",
                            Plural(reuse.max_distance_blocks(), "block"), " at most"));
    }
  }
  row("partial blocks", prompt.partial_blocks(), -1, -1,
      "behind the last full block: never cached");
  row("all", prompt.known(), -1, -1, "");
  text.Blank();
}

void AddWorst(const pb::Explanation& explanation, TextPage& text) {
  if (explanation.worst_size() == 0) {
    text.Plain("no request missed a block because it was evicted");
    return;
  }
  text.Heading("the requests that lost most to evictions (kvsim explain --request=ID says more)");
  text.Plain(absl::StrFormat("%-*s %7s %10s %9s %9s %9s %9s  %s", kPrintableWidth, "id", "row",
                             "evicted", "hit", "other", "known", "age", "blocks taken since"));
  for (const pb::WorstRequest& worst : explanation.worst()) {
    text.Plain(absl::StrFormat(
        "%-*s %7d %10s %9s %9s %9s %9s  %s", kPrintableWidth, Printable(worst.name().id()),
        worst.name().row(), WithThousands(worst.evicted_tokens()),
        WithThousands(worst.hit_tokens()),
        WithThousands(worst.other_missed_tokens() + worst.partial_tokens()),
        WithThousands(worst.known_tokens()),
        worst.has_last_use() ? absl::StrFormat("%.1f s", worst.last_use().age_s()) : "-",
        worst.has_last_use() ? WithThousands(worst.last_use().distance_blocks()) : "-"));
  }
}

// --- One request ---

std::string Fate(const pb::BlockRunLife& run) {
  std::string fate = run.cause();
  if (run.has_last_use()) {
    absl::StrAppend(&fate, "; last used ", SecondsText(run.last_use().age_s()), " and ",
                    Plural(run.last_use().distance_blocks(), "block"), " earlier");
  } else if (run.cause() == "evicted") {
    absl::StrAppend(&fate, "; its last user still runs");
  }
  if (run.has_last_use() && run.cause() == "evicted" && !run.has_gone()) {
    absl::StrAppend(&fate, "; when it was removed is forgotten");
  }
  if (run.has_gone()) {
    const pb::BlocksGone& gone = run.gone();
    absl::StrAppend(&fate, "; gone since ", SecondsText(gone.first_s()));
    if (gone.last_s() != gone.first_s()) absl::StrAppend(&fate, " to ", SecondsText(gone.last_s()));
    absl::StrAppend(&fate, ", ",
                    gone.min_blocks_since() == gone.max_blocks_since()
                        ? ""
                        : absl::StrCat(WithThousands(gone.min_blocks_since()), " to "),
                    Plural(gone.max_blocks_since(), "block"), " ago");
  }
  if (run.has_veto()) {
    absl::StrAppend(&fate, "; group ", run.veto().group(), " lacks its block ", run.veto().block(),
                    run.veto().why().empty() ? "" : absl::StrCat(": ", run.veto().why()));
  }
  if (run.has_first_computed_by()) {
    absl::StrAppend(&fate, "; first computed by ", NameOf(run.first_computed_by()));
  }
  return fate;
}

// What was loaded, and of the rest why not.
void AddTierLookup(const pb::TierLookupLife& lookup, bool is_first, TextPage& text) {
  std::string line;
  if (!is_first) {
    line = absl::StrCat(SecondsText(lookup.time_s()), "  looked up again, ",
                        WithThousands(lookup.hit_tokens()), " tokens hit: ");
  }
  absl::StrAppend(&line, lookup.loaded_tokens() == 0
                             ? "nothing"
                             : Plural(lookup.loaded_tokens(), "token"),
                  " loaded from tiers");
  if (lookup.has_load_end_s()) absl::StrAppend(&line, " by ", SecondsText(lookup.load_end_s()));
  if (lookup.has_load_end_s() && lookup.arrived_tokens() < lookup.loaded_tokens()) {
    absl::StrAppend(&line, "; the load failed behind ", Plural(lookup.arrived_tokens(), "token"));
  }
  text.Wrap("    ", line);
  for (const pb::TierFound& tier : lookup.tiers()) {
    const std::string misses = DescribeTierMisses(tier.misses());
    text.Wrap("      ", absl::StrCat(Printable(tier.name()), ": ",
                                     WithThousands(tier.loaded_tokens()), " loaded",
                                     misses.empty() ? "" : absl::StrCat("; of the rest ", misses)));
  }
}

void AddAdmission(const pb::AdmissionLife& admission, const pb::Report& replay, TextPage& text) {
  text.Heading(absl::StrCat(
      SecondsText(admission.time_s()), admission.is_resume() ? "  resumed" : "  admitted",
      " after ", SecondsText(admission.waited_s()), ", ", Plural(admission.attempts(), "attempt")));
  if (!replay.config().prefix_caching()) {
    text.Plain("    prefix caching is off: nothing is looked up");
    return;
  }
  text.Plain(absl::StrCat("    ", WithThousands(admission.hit_tokens()), " of ",
                        WithThousands(admission.known_tokens()), " known tokens hit (",
                        ShareText(admission.hit_tokens(), admission.known_tokens()), ")"));
  for (int i = 0; i < admission.tier_lookups_size(); ++i) {
    AddTierLookup(admission.tier_lookups(i), i == 0, text);
  }
  text.Plain(absl::StrFormat("    %10s %10s %8s  %s", "from token", "tokens", "blocks",
                           admission.tier_lookups().empty() ? "fate" : "fate on the device"));
  for (const pb::BlockRunLife& run : admission.runs()) {
    text.Wrap(absl::StrFormat("    %10s %10s %8s  ", WithThousands(run.first_token()),
                              WithThousands(run.tokens()), WithThousands(run.blocks())),
              Fate(run));
  }
  if (admission.partial_tokens() > 0) {
    text.Plain(absl::StrFormat("    %10s %10s %8s  %s",
                             WithThousands(admission.known_tokens() - admission.partial_tokens()),
                             WithThousands(admission.partial_tokens()), "",
                             "partial block: never cached"));
  }
  for (const pb::GroupReachLife& group : admission.groups()) {
    if (admission.groups_size() == 1) break;
    text.Wrap("    ", absl::StrCat("group ", group.group(), " (", group.kind(),
                                   ") alone would hit ", WithThousands(group.hit_tokens()),
                                   group.has_stop() ? absl::StrCat(", stopped at its block ",
                                                                   group.stop().block(), ": ",
                                                                   group.stop().why())
                                                    : ""));
  }
}

void AddLife(const pb::RequestLife& life, const pb::Report& replay, TextPage& text) {
  text.Heading(absl::StrCat(NameOf(life.name()), ", line ", life.name().line(), ": ",
                            Plural(life.prompt_tokens(), "prompt token"), ", ",
                            Plural(life.requested_output_tokens(), "output token"), " asked for"));
  std::vector<std::string> facts;
  if (!life.tenant().empty()) facts.push_back(absl::StrCat("tenant ", Printable(life.tenant())));
  if (!life.slo_class().empty()) {
    facts.push_back(absl::StrCat("class ", Printable(life.slo_class())));
  }
  if (!life.adapter().empty()) facts.push_back(absl::StrCat("adapter ", Printable(life.adapter())));
  if (life.session() != 0) {
    facts.push_back(absl::StrCat("turn ", life.turn(), " of session ", life.session()));
  }
  if (life.namesakes() > 0) {
    facts.push_back(absl::StrCat("the first of ", life.namesakes() + 1,
                                 " requests with this id (row:N selects another)"));
  }
  for (const std::string& fact : facts) text.Plain(absl::StrCat("    ", fact));
  if (life.never_arrived()) {
    text.Plain("    given up before it arrived, with its session");
    return;
  }
  text.Plain(absl::StrCat(SecondsText(life.arrival_s()), "  arrived"));
  if (!life.rejection().empty()) {
    text.Wrap("    ", absl::StrCat("rejected: ", life.rejection()));
    return;
  }
  int next = 0;
  for (const pb::AdmissionLife& admission : life.admissions()) {
    AddAdmission(admission, replay, text);
    if (next == 0 && life.output_tokens() > 0 &&
        (life.preemptions_size() == 0 || life.first_token_s() <= life.preemptions(0).time_s())) {
      text.Plain(absl::StrCat(SecondsText(life.first_token_s()), "  first token"));
    }
    if (next >= life.preemptions_size()) continue;
    const pb::PreemptionLife& preemption = life.preemptions(next++);
    const bool by_itself = preemption.cause().row() == life.name().row();
    text.Heading(
        absl::StrCat(SecondsText(preemption.time_s()), "  preempted, ",
                     Plural(preemption.lost_tokens(), "computed token"), " given up; ",
                     by_itself ? std::string("it needed the block itself")
                               : absl::StrCat("the block went to ", NameOf(preemption.cause()))));
  }
  if (life.preemptions_size() > 0 && life.output_tokens() > 0 &&
      life.first_token_s() > life.preemptions(0).time_s()) {
    text.Plain(absl::StrCat(SecondsText(life.first_token_s()), "  first token"));
  }
  if (life.end() == "none") {
    text.Plain("    the replay ended before it");
  } else {
    text.Heading(absl::StrCat(SecondsText(life.end_s()), "  finished (", life.end(), ") with ",
                              Plural(life.output_tokens(), "output token"), ", ",
                              SecondsText(life.end_s() - life.arrival_s()), " after its arrival"));
  }
}

}  // namespace

std::string FormatExplanation(const pb::Explanation& explanation, bool color) {
  const pb::Report& replay = explanation.replay();
  TextPage text(color);
  text.Plain(absl::StrCat(Printable(replay.workload().name()), ": ",
                        Plural(replay.workload().requests_arrived(), "request"), "; ",
                        Plural(replay.setup().num_blocks(), "block"), " of ",
                        replay.setup().block_tokens(), " tokens",
                        replay.groups_size() > 1
                            ? absl::StrCat(" in ", replay.groups_size(), " KV-cache groups")
                            : std::string(),
                        replay.config().engine().empty() ? "" : "; ", replay.config().engine()));
  text.Blank();
  if (explanation.has_request()) {
    AddLife(explanation.request(), replay, text);
  } else if (!replay.config().prefix_caching()) {
    text.Plain("prefix caching is off: nothing is looked up");
  } else {
    AddTotals(replay, text);
    if (!replay.tiers().tiers().empty()) {
      AddTiers(replay.tiers(), text);
      text.Blank();
    }
    AddWorst(explanation, text);
  }
  for (const std::string& note : replay.notes()) text.Wrap("note: ", note);
  return text.Take();
}

}  // namespace kvblocks::sim
