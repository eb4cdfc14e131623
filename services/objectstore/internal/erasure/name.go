package erasure

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Kind of a fragment.
type Kind uint8

// Kinds. A copy is the whole body. Data shards have its bytes in turns; parity shards are computed.
const (
	Copy Kind = iota + 1
	Data
	Parity
)

func (k Kind) String() string {
	return [...]string{"unknown", "copy", "data", "parity"}[min(int(k), 3)]
}

// Fragment names a file that has a body, or a share of it.
type Fragment struct {
	Body string // id: 32 lower-case hex digits
	// Policy is the version of the redundancy policy under which shards were made; 0 for a copy, which
	// has the same bytes under every policy.
	Policy uint32
	// K data and M parity shards; 1 and 0 for a copy.
	K, M int
	// Index of the shard: data 0 to K-1, parity K to K+M-1.
	Index int
}

// MaxShards is the most shards that a body may have.
const MaxShards = 64

// CopyOf gives the name of a copy.
func CopyOf(body string) Fragment { return Fragment{Body: body, K: 1} }

// Kind tells copies, data and parity apart.
func (f Fragment) Kind() Kind {
	switch {
	case f.IsCopy():
		return Copy
	case f.Index < f.K:
		return Data
	}
	return Parity
}

// IsCopy reports whether the fragment is a whole body.
func (f Fragment) IsCopy() bool { return f.Policy == 0 }

// Name is the file's name: "<body>.copy", or "<body>.<policy>.<k>-<m>-<index>" with the policy in
// eight hex digits and the rest in two decimal ones. Names in order have the fragments of a body
// beside each other.
func (f Fragment) Name() string {
	if f.IsCopy() {
		return f.Body + copySuffix
	}
	return fmt.Sprintf("%s.%08x.%02d-%02d-%02d", f.Body, f.Policy, f.K, f.M, f.Index)
}

func (f Fragment) String() string { return f.Name() }

const (
	copySuffix = ".copy"
	idLen      = 32
)

// Parse is the inverse of Name; false for a name that no fragment has.
func Parse(name string) (Fragment, bool) {
	if len(name) < idLen {
		return Fragment{}, false
	}
	f := Fragment{Body: name[:idLen]}
	if name[idLen:] == copySuffix {
		f.K = 1
	} else if !f.parseShard(name[idLen:]) {
		return Fragment{}, false
	}
	// Compared with what Name gives: there is one name of a fragment, and no second way to write it.
	return f, f.valid() == nil && f.Name() == name
}

func (f *Fragment) parseShard(s string) bool {
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return false
	}
	policy, err := strconv.ParseUint(parts[1], 16, 32)
	f.Policy = uint32(policy)
	numbers := strings.Split(parts[2], "-")
	if err != nil || len(numbers) != 3 {
		return false
	}
	for i, to := range []*int{&f.K, &f.M, &f.Index} {
		n, err := strconv.ParseUint(numbers[i], 10, 8)
		if err != nil {
			return false
		}
		*to = int(n)
	}
	return f.Policy != 0
}

// valid checks the numbers and the id.
func (f Fragment) valid() error {
	raw, err := hex.DecodeString(f.Body)
	switch {
	case err != nil || len(raw) != idLen/2 || strings.ToLower(f.Body) != f.Body:
		return fmt.Errorf("fragment %q: the body's id is not 32 hex digits", f.Body)
	case f.IsCopy() && (f.K != 1 || f.M != 0 || f.Index != 0):
		return fmt.Errorf("fragment of %s: a copy is the only shard of one", f.Body)
	case f.K < 1 || f.M < 0 || f.K+f.M > MaxShards || f.Index < 0 || f.Index >= f.K+f.M:
		return fmt.Errorf("fragment of %s: shard %d of %d+%d", f.Body, f.Index, f.K, f.M)
	}
	return nil
}
