/* The version of kvblocks: the one place that states it.
 *
 * CMake, the packages, kvsim --version and kvb_version() take it from here; MODULE.bazel repeats
 * it, and tests/packaging/check_version.sh compares. What a new version may change: CHANGELOG.md.
 * Plain C. */

#ifndef KVBLOCKS_VERSION_H_
#define KVBLOCKS_VERSION_H_

#define KVBLOCKS_VERSION_MAJOR 0
#define KVBLOCKS_VERSION_MINOR 6
#define KVBLOCKS_VERSION_PATCH 0

/* "0.6.0", for messages and files. */
#define KVBLOCKS_VERSION_TEXT_(number) #number
#define KVBLOCKS_VERSION_DOTTED_(major, minor, patch) \
  KVBLOCKS_VERSION_TEXT_(major) "." KVBLOCKS_VERSION_TEXT_(minor) "." KVBLOCKS_VERSION_TEXT_(patch)
#define KVBLOCKS_VERSION \
  KVBLOCKS_VERSION_DOTTED_(KVBLOCKS_VERSION_MAJOR, KVBLOCKS_VERSION_MINOR, KVBLOCKS_VERSION_PATCH)

/* One number that grows with every version, for #if: 0.6.0 is 600. */
#define KVBLOCKS_VERSION_NUMBER                                           \
  (KVBLOCKS_VERSION_MAJOR * 10000 + KVBLOCKS_VERSION_MINOR * 100 +        \
   KVBLOCKS_VERSION_PATCH)

#endif /* KVBLOCKS_VERSION_H_ */
