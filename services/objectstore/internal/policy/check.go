package policy

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// checkPrincipals refuses users that are not known. A policy that is stored already stays in force without its users: known
// is nil then.
func (s *Statement) checkPrincipals(known func(user string) bool) *Error {
	if known == nil {
		return nil
	}
	for _, p := range s.Principal {
		if p != "*" && !known(p) {
			return refuse(badPrincipal, "there is no user %q", p)
		}
	}
	return nil
}

// checkSense refuses a statement that would not do what it says.
func (s *Statement) checkSense() *Error {
	objects := slices.ContainsFunc(s.Resource, func(r string) bool { return strings.Contains(r, "/") || strings.HasSuffix(r, "*") })
	buckets := slices.ContainsFunc(s.Resource, func(r string) bool { return !strings.Contains(r, "/") })
	for _, a := range s.Action {
		a = strings.ToLower(a)
		if isEveryAction(a) {
			continue
		}
		ofObjects, ofBuckets := matching(a, objectActions), matching(a, bucketActions)
		if !strings.HasPrefix(a, "s3:") || len(ofObjects)+len(ofBuckets) == 0 {
			return refuse("Policy has invalid action", "action %q is none of S3", a)
		}
		if err := s.checkKeys(slices.Concat(ofObjects, ofBuckets)); err != nil {
			return err
		}
		// An action that names both kinds has to fit one of them: the policies of the world have s3:Get* on objects.
		if !(len(ofObjects) > 0 && objects) && !(len(ofBuckets) > 0 && buckets) {
			return refuse("Action does not apply to any resource(s) in statement", "action %q does not fit the resources", a)
		}
	}
	return nil
}

// checkKeys refuses a condition key that no request of the actions can have.
func (s *Statement) checkKeys(actions []string) *Error {
	for _, keys := range s.Condition {
		for name := range keys {
			k, _ := keyOf(name) // it is one: Parse took it
			if k.actions != nil && !slices.ContainsFunc(actions, func(a string) bool { return slices.Contains(k.actions, a) }) {
				return refuse("Conditions do not apply to combination of actions and resources in statement", "condition key %q does not apply to %s", name, strings.Join(actions, ", "))
			}
		}
	}
	return nil
}

// refuseTwice refuses a document with an object that has a name twice: the decoder would keep one of both, and drop what the
// other protects. Names have no case for it.
func refuseTwice(text []byte) *Error {
	d := json.NewDecoder(bytes.NewReader(text))
	var open []map[string]bool // the names of the objects around; nil for a list
	isName := false            // the next token is a name, where it is a string
	for {
		t, err := d.Token()
		if err != nil {
			return nil // the end: the document was read before
		}
		switch t := t.(type) {
		case json.Delim:
			switch t {
			case '{':
				open = append(open, map[string]bool{})
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
		case string:
			if !isName {
				break
			}
			names, low := open[len(open)-1], strings.ToLower(t)
			if names[low] {
				return refuse(badJSON, "%q is there twice", t)
			}
			names[low] = true
			isName = false
			continue
		}
		isName = len(open) > 0 && open[len(open)-1] != nil
	}
}

// refuseVariables refuses ${...}, which would be compared as it is written.
func (d *Document) refuseVariables() *Error {
	for i, s := range d.Statement {
		for _, r := range s.Resource {
			if strings.Contains(r, "${") {
				return refuse(badResource, "statement %d: resource %q: variables are not supported", i, r)
			}
		}
		for _, keys := range s.Condition {
			for _, values := range keys {
				for _, v := range values {
					if strings.Contains(v, "${") {
						return refuse("Invalid value in Conditions", "statement %d: value %q: variables are not supported", i, v)
					}
				}
			}
		}
	}
	return nil
}
