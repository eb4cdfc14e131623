package policy

import (
	"slices"
	"strings"
)

// IsPublic reports whether a policy lets everybody do something: it allows *, and no condition bounds who that is. As on
// AWS, networks wider than /8 (/32 with IPv6) bound nobody.
func (d *Document) IsPublic() bool {
	return d != nil && slices.ContainsFunc(d.Statement, func(s Statement) bool {
		return s.Effect == "Allow" && slices.Contains(s.Principal, "*") && !s.isBounded()
	})
}

// isBounded reports whether a condition names who may ask.
func (s *Statement) isBounded() bool {
	for name, keys := range s.Condition {
		q, _ := operatorOf(name)
		if q.negated || q.null || q.ifExists || q.everyHave {
			continue // what remains is not bounded
		}
		for key, want := range keys {
			if boundsCallers(key, want) {
				return true
			}
		}
	}
	return false
}

func boundsCallers(key string, want Texts) bool {
	k, _ := keyOf(key)
	switch {
	case k.isIP:
		return !slices.ContainsFunc(want, func(w string) bool {
			p, ok := network(w)
			return !ok || p.Bits() < 8 || p.Addr().Is6() && p.Bits() < 32
		})
	case strings.EqualFold(key, keyPrincipalARN), strings.EqualFold(key, keyUserName), strings.EqualFold(key, keyUserID):
		return !slices.ContainsFunc(want, func(w string) bool { return containsWildcard(w) })
	}
	return false
}

func containsWildcard(s string) bool { return strings.ContainsAny(s, "*?") }
