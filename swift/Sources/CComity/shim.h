// What pkg-config finds: libcomity's own header.
#include <comity.h>
