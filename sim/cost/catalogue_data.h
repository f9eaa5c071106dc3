// The text of catalogue.textproto, made part of the binary when it is built.

#ifndef KVBLOCKS_SIM_COST_CATALOGUE_DATA_H_
#define KVBLOCKS_SIM_COST_CATALOGUE_DATA_H_

namespace kvblocks::sim {

extern const char kCatalogueText[];

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_CATALOGUE_DATA_H_
