package qualify

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// settings are the checks of how the bucket is set up. They need credentials that may read that, as an
// operator's; with others, and over stores that do not tell, they are skipped.
var settings = []check{
	{"settings: lifecycle", noExpiry},
	{"settings: versioning", versioning},
}

func (p *probe) configured() (objstore.Configured, error) {
	c, ok := p.back.(objstore.Configured)
	if !ok {
		return nil, skipped("the store does not tell")
	}
	return c, nil
}

func unseen(err error) error {
	if errors.Is(err, objstore.ErrDenied) {
		return skipped("these credentials may not read it; ask with an operator's")
	}
	return err
}

// noExpiry: a rule that deletes or moves objects of the authority loses data, or makes it unreadable.
func noExpiry(ctx context.Context, p *probe) error {
	c, err := p.configured()
	if err != nil {
		return err
	}
	rules, err := c.Lifecycle(ctx)
	if err != nil {
		return unseen(err)
	}
	under := objstore.PlaceOf(p.back).Prefix
	harmless := 0
	for _, r := range rules {
		touches := strings.HasPrefix(under, r.Prefix) || strings.HasPrefix(r.Prefix, under)
		switch {
		case !r.Enabled || !touches || !r.Expires && !r.Moves:
			harmless++
		case r.Expires:
			return fmt.Errorf("rule %q expires objects under %q", r.ID, r.Prefix)
		default:
			return fmt.Errorf("rule %q moves objects under %q to another storage class", r.ID, r.Prefix)
		}
	}
	p.detail = fmt.Sprintf("%d rules, none deletes or moves objects", harmless)
	return nil
}

// versioning holds in every state; it is shown, because superseded and deleted objects stay and cost
// where it is on.
func versioning(ctx context.Context, p *probe) error {
	c, err := p.configured()
	if err != nil {
		return err
	}
	state, err := c.Versioning(ctx)
	if err != nil {
		return unseen(err)
	}
	switch state {
	case "":
		p.detail = "off"
	case "Enabled":
		p.detail = "on: what is superseded or deleted stays, until a rule expires noncurrent versions"
	default:
		p.detail = strings.ToLower(state)
	}
	return nil
}
