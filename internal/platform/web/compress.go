package web

import (
	"net/http"

	"github.com/klauspost/compress/gzhttp"
)

// compressFrom is the least size of an answer that is compressed.
const compressFrom = 2 << 10

// Compress compresses answers for clients that take gzip.
func Compress(h http.Handler) (http.Handler, error) {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(compressFrom), gzhttp.EnableZstd(false))
	if err != nil {
		return nil, err
	}
	return wrap(h), nil
}
