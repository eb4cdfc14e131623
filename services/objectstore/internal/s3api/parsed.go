package s3api

import (
	"bytes"
	"sync"
)

// maxParsed bounds the settings that are kept parsed: more than there are buckets.
const maxParsed = 256

// parsed keeps what was parsed of a setting of each bucket. It goes by the text, so a setting that changed is parsed again.
type parsed[T any] struct {
	mu       sync.RWMutex
	byBucket map[string]parsedText[T]
}

type parsedText[T any] struct {
	text  []byte
	value T
}

// is reports whether it was parsed of a text. A setting never changes in place, so most of the time it is the same memory:
// comparing the rules of a bucket for every request would take longer than many a request.
func (p *parsedText[T]) is(text []byte) bool {
	if len(p.text) != len(text) {
		return false
	}
	return len(text) == 0 || &p.text[0] == &text[0] || bytes.Equal(p.text, text)
}

// get gives the parsed text; parse is asked when it is not known yet.
func (p *parsed[T]) get(bucket string, text []byte, parse func([]byte) (T, error)) (T, error) {
	p.mu.RLock()
	known, ok := p.byBucket[bucket]
	p.mu.RUnlock()
	if ok && known.is(text) {
		return known.value, nil
	}
	v, err := parse(text)
	if err != nil {
		return v, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byBucket == nil || len(p.byBucket) >= maxParsed {
		p.byBucket = map[string]parsedText[T]{} // buckets come and go; parsing again is cheap
	}
	p.byBucket[bucket] = parsedText[T]{text, v}
	return v, nil
}
