// The text of catalogue.textproto, made part of the binary when it is built.

#ifndef KVBLOCKS_SPECS_CATALOGUE_CATALOGUE_DATA_H_
#define KVBLOCKS_SPECS_CATALOGUE_CATALOGUE_DATA_H_

namespace kvblocks {

extern const char kCatalogueText[];

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_CATALOGUE_DATA_H_
