// BlockIndex: which cache holds which block.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "python/src/content.h"
#include "python/src/events.h"

namespace kvblocks::python {

using events::BlockIndex;
using events::HolderId;

namespace {

HolderId CheckHolder(const BlockIndex& index, int64_t holder) {
  if (holder >= 0 && holder < index.num_holders()) return static_cast<HolderId>(holder);
  Raise("NotFoundError", absl::StrCat("BlockIndex: holder is ", holder, ", of ",
                                      index.num_holders(), " that there are, counted from 0"));
}

// Pairs of a holder and a number.
template <typename Entries>
Result<"list[tuple[int, int]]"> PairsOf(const Entries& entries) {
  nb::list list;
  for (const auto& entry : entries) list.append(nb::make_tuple(entry.holder, entry.num_blocks));
  return list;
}

Result<"list[tuple[int, int]]"> FindLongestPrefix(const PyBlockIndex& self,
                                                  Argument<"PrefixContent | Hashes"> hashes,
                                                  GroupId group) {
  constexpr size_t kManyHashes = 128;
  PyContent* content = nullptr;
  std::vector<BlockHash> given;
  if (nb::try_cast(hashes, content) && content != nullptr) {
    // A copy: others may append to it meanwhile.
    given.assign(content->core.hashes().begin(), content->core.hashes().end());
  } else {
    given = HashesFrom(hashes);
  }
  const PyBlockIndex::Use use = self.ToUse();
  std::vector<BlockIndex::PrefixMatch> matches;
  {
    const Inside inside(use.num_inside);
    const ReleaseIf released(given.size() > kManyHashes);
    matches = use.index.FindLongestPrefix(given, group);
  }
  return PairsOf(matches);
}

void Apply(PyBlockIndex& self, int64_t holder, Events list) {
  constexpr size_t kManyEvents = 16;
  const EventsArgument events(list);
  BlockIndex& index = self.ToChange();
  const HolderId id = CheckHolder(index, holder);
  const Inside inside(self.num_inside);
  const ReleaseIf released(events.events().size() > kManyEvents);
  index.Apply(id, events.events());
}

void Forget(PyBlockIndex& self, int64_t holder) {
  BlockIndex& index = self.ToChange();
  const HolderId id = CheckHolder(index, holder);
  const Inside inside(self.num_inside);
  const ReleaseIf released(true);
  index.Forget(id);
}

}  // namespace

PyBlockIndex::Use PyBlockIndex::ToUse() const {
  if (own == nullptr) return find(owner);
  CheckAlone(num_inside, "BlockIndex");
  return {*own, num_inside};
}

BlockIndex& PyBlockIndex::ToChange() {
  if (own != nullptr) {
    (void)ToUse();
    return *own;
  }
  Raise("InvalidArgumentError",
        "BlockIndex: a subscriber keeps this index; only what it receives changes it");
}

void BindEventIndex(nb::module_& module) {
  nb::class_<BlockIndex::Holder>(module, "IndexHolder",
                                 "One cache of a BlockIndex, at that moment.")
      .def_ro("name", &BlockIndex::Holder::name)
      .def_ro("num_keys", &BlockIndex::Holder::num_keys, "Distinct contents that it holds.")
      .def_ro("num_blocks", &BlockIndex::Holder::num_blocks, "Blocks that it holds.")
      .def_ro("num_stored", &BlockIndex::Holder::num_stored,
              "Since it was added; as all that follow.")
      .def_ro("num_removed", &BlockIndex::Holder::num_removed)
      .def_ro("num_cleared", &BlockIndex::Holder::num_cleared)
      .def_ro("num_unknown_removals", &BlockIndex::Holder::num_unknown_removals,
              "Of what was not known to be stored: after a loss of messages.")
      .def_ro("num_other_media", &BlockIndex::Holder::num_other_media, "Passed over.");

  nb::class_<PyBlockIndex>(module, "BlockIndex",
                           R"(Which cache holds which block, kept by KV events: what a router asks.

A holder is a cache, numbered from 0. 40 to 70 bytes per block held; about 100 ns per event's hash.
One thread at a time; long calls release the interpreter lock.)")
      .def(
          "__init__",
          [](PyBlockIndex* self, std::string medium) {
            auto own =
                std::make_unique<BlockIndex>(BlockIndex::Options{.medium = std::move(medium)});
            new (self) PyBlockIndex{std::move(own), {}, nullptr};
          },
          nb::kw_only(), nb::arg("medium") = "GPU",
          "Events of other media are passed over; \"\": all count.")
      .def(
          "add_holder",
          [](PyBlockIndex& self, std::string name) {
            return self.ToChange().AddHolder(std::move(name));
          },
          nb::arg("name"), "A cache that is empty; its number.")
      .def("apply", &Apply, nb::arg("holder"), nb::arg("events"),
           "What a cache said, in its order. Raises NotFoundError for no such holder.")
      .def("forget", &Forget, nb::arg("holder"),
           "Nothing is known of this cache any more: restarted, or messages lost. O(blocks).")
      .def("find_longest_prefix", &FindLongestPrefix, nb::arg("hashes"), nb::arg("group") = 0,
           "(holder, leading blocks that it holds) of each holder of the first block, the longest "
           "first. For groups that need every block of a prefix, as full attention does.")
      .def(
          "holders",
          [](const PyBlockIndex& self, nb::bytes hash, GroupId group) {
            return PairsOf(self.ToRead().Holders({HashFrom(hash), group}));
          },
          nb::arg("block_hash"), nb::arg("group") = 0,
          "(holder, blocks with this content) of each that holds it.")
      .def(
          "holder",
          [](const PyBlockIndex& self, int64_t holder) {
            const BlockIndex& index = self.ToRead();
            return index.holder(CheckHolder(index, holder));
          },
          nb::arg("holder"), "Name and counts of one. Raises NotFoundError.")
      .def_prop_ro("num_holders",
                   [](const PyBlockIndex& self) { return self.ToRead().num_holders(); })
      .def_prop_ro(
          "num_keys", [](const PyBlockIndex& self) { return self.ToRead().num_keys(); },
          "Distinct contents, over all holders.");
}

}  // namespace kvblocks::python
