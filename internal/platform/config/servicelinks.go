package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// serviceLinks are the variables that Kubernetes sets in every pod for each service of its
// namespace. A service that is named lightmetrics-query makes LIGHTMETRICS_QUERY_SERVICE_HOST.
// Their values are checked too, so that a misspelled setting does not pass for one.
var serviceLinks = []struct{ name, value *regexp.Regexp }{
	{regexp.MustCompile(`_SERVICE_HOST$`), regexp.MustCompile(`^[0-9A-Fa-f.:]+$`)},
	{regexp.MustCompile(`_SERVICE_PORT(_[A-Z0-9_]+)?$`), regexp.MustCompile(`^[0-9]+$`)},
	{regexp.MustCompile(`_PORT(_[0-9]+_(TCP|UDP|SCTP))?$`), regexp.MustCompile(`^(tcp|udp|sctp)://`)},
	{regexp.MustCompile(`_PORT_[0-9]+_(TCP|UDP|SCTP)_PROTO$`), regexp.MustCompile(`^(tcp|udp|sctp)$`)},
	{regexp.MustCompile(`_PORT_[0-9]+_(TCP|UDP|SCTP)_PORT$`), regexp.MustCompile(`^[0-9]+$`)},
	{regexp.MustCompile(`_PORT_[0-9]+_(TCP|UDP|SCTP)_ADDR$`), regexp.MustCompile(`^[0-9A-Fa-f.:]+$`)},
}

// SplitServiceLinks takes the variables out of an environment that Kubernetes sets for
// services, and gives their names.
func SplitServiceLinks(environ []string) (rest, links []string) {
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		isLink := strings.HasPrefix(name, EnvPrefix) && slices.ContainsFunc(serviceLinks, func(l struct{ name, value *regexp.Regexp }) bool {
			// The underscore stands in for a service that is named lightmetrics itself:
			// LIGHTMETRICS_SERVICE_HOST has nothing before SERVICE.
			return l.name.MatchString("_"+strings.TrimPrefix(name, EnvPrefix)) && l.value.MatchString(value)
		})
		if isLink {
			links = append(links, name)
		} else {
			rest = append(rest, kv)
		}
	}
	slices.Sort(links)
	return rest, links
}

// CheckEnvironment refuses LIGHTMETRICS_ variables that belong to none of the sections and
// are not among others: one with a misspelled section would leave the default in force.
// An entry of others that ends in an underscore stands for all that begin so.
func CheckEnvironment(environ, sections, others []string) error {
	var unknown []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		known := slices.ContainsFunc(sections, func(s string) bool { return strings.HasPrefix(name, EnvName(s)+"_") }) ||
			slices.ContainsFunc(others, func(o string) bool {
				return name == o || strings.HasSuffix(o, "_") && strings.HasPrefix(name, o)
			})
		if !known {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("environment: unknown settings: %s; want %s<SECTION>_<SETTING>, the sections are %s",
			strings.Join(unknown, ", "), EnvPrefix, strings.Join(sections, ", "))
	}
	return nil
}
