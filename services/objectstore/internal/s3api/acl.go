package s3api

import (
	"encoding/json"
	"encoding/xml"
	"net/http"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

// ACLs of buckets. Every bucket is BucketOwnerEnforced unless it is told otherwise: there are no ACLs then, and one that
// says anything but that the owner has full control is an error. Where they count, they allow more than policies do, and
// never take anything away. The store has one account, whose users without a policy are its owner, so the owner's full
// control is in every ACL and cannot be taken out. Objects have no ACLs of their own.

// settingACL is the name under which the engine keeps the grants of a bucket, as JSON.
const settingACL = "acl"

const (
	// maxGrants is AWS's limit.
	maxGrants = 100

	groupAll           = "http://acs.amazonaws.com/groups/global/AllUsers"
	groupAuthenticated = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
	groupLogs          = "http://acs.amazonaws.com/groups/s3/LogDelivery"
	fullControl        = "FULL_CONTROL"
)

// acl is who may do what with a bucket, beside its owner.
type acl struct {
	Grants []grant `json:"grants"`
}

// grant gives one permission to a user, or to a group by its URI.
type grant struct {
	Grantee    string `json:"grantee"`
	Permission string `json:"permission"`
}

func (g grant) isGroup() bool { return strings.HasPrefix(g.Grantee, "http://") }

// permitted are the actions that a permission on a bucket allows.
var permitted = map[string][]string{
	"READ":      {"ListBucket", "ListBucketVersions", "ListBucketMultipartUploads"},
	"WRITE":     {"PutObject"},
	"READ_ACP":  {"GetBucketAcl"},
	"WRITE_ACP": {"PutBucketAcl"},
	fullControl: {"ListBucket", "ListBucketVersions", "ListBucketMultipartUploads", "PutObject", "GetBucketAcl", "PutBucketAcl"},
}

// cannedACLs are the grants that x-amz-acl stands for, beside the owner's.
var cannedACLs = map[string][]grant{
	"private":                   nil,
	"public-read":               {{groupAll, "READ"}},
	"public-read-write":         {{groupAll, "READ"}, {groupAll, "WRITE"}},
	"authenticated-read":        {{groupAuthenticated, "READ"}},
	"log-delivery-write":        {{groupLogs, "WRITE"}, {groupLogs, "READ_ACP"}},
	"aws-exec-read":             nil, // for machine images of EC2, which ask nobody here
	"bucket-owner-read":         nil, // of objects; a bucket ignores them
	"bucket-owner-full-control": nil,
}

// grantHeaders have a list of grantees each.
var grantHeaders = []struct{ name, permission string }{
	{"X-Amz-Grant-Full-Control", fullControl}, {"X-Amz-Grant-Read", "READ"}, {"X-Amz-Grant-Read-Acp", "READ_ACP"},
	{"X-Amz-Grant-Write", "WRITE"}, {"X-Amz-Grant-Write-Acp", "WRITE_ACP"},
}

// isPublic reports whether everybody, or every AWS account, gets something.
func (a acl) isPublic() bool {
	return slices.ContainsFunc(a.Grants, func(g grant) bool { return g.Grantee == groupAll || g.Grantee == groupAuthenticated })
}

// allows reports whether a grant lets somebody do action; user is "" for nobody.
func (a acl) allows(user, action string, ignorePublic bool) bool {
	return slices.ContainsFunc(a.Grants, func(g grant) bool {
		if !slices.Contains(permitted[g.Permission], action) {
			return false
		}
		switch g.Grantee {
		case groupAll:
			return !ignorePublic
		case groupAuthenticated:
			return !ignorePublic && user != ""
		}
		return g.Grantee == user && user != ""
	})
}

// aclOf gives the grants of a bucket, whether they count or not.
func (s *Server) aclOf(b engine.Bucket) (acl, error) {
	text := b.Settings[settingACL]
	if text == nil {
		return acl{}, nil
	}
	return s.acls.get(b.Name, text, func(text []byte) (a acl, err error) {
		err = json.Unmarshal(text, &a)
		return a, err
	})
}

// grantedByACL reports whether the caller may do action by the bucket's ACL.
func (c *call) grantedByACL(b engine.Bucket, action string) bool {
	if b.Settings[settingACL] == nil || ownershipOf(b) == ownerEnforced {
		return false
	}
	a, err := c.aclOf(b)
	if err != nil {
		c.Log.Error("a bucket's ACL cannot be read, it allows nothing", "bucket", b.Name, "error", err)
		return false
	}
	return a.allows(c.user.Name, action, c.publicAccess(b).IgnorePublicAcls)
}

// headerACL reads x-amz-acl and x-amz-grant-*; given is false when there is neither.
func (c *call) headerACL(h http.Header) (a acl, given bool, err error) {
	canned := h.Get("X-Amz-Acl")
	if canned != "" && hasGrants(h) {
		return a, true, s3err.InvalidRequest.With("Specifying both Canned ACLs and Header Grants is not allowed.")
	}
	for _, g := range grantHeaders {
		for _, v := range h[g.name] {
			for part := range strings.SplitSeq(v, ",") {
				who, err := c.granteeOf(strings.TrimSpace(part))
				if err != nil {
					return a, true, err
				}
				a.Grants = append(a.Grants, grant{who, g.permission})
			}
		}
	}
	switch {
	case len(a.Grants) > maxGrants:
		return a, true, s3err.MalformedACL
	case canned == "":
		return a, a.Grants != nil, nil
	}
	grants, ok := cannedACLs[canned]
	if !ok {
		return a, true, s3err.Argument("x-amz-acl", canned, "")
	}
	a.Grants = grants
	return a, true, nil
}

func hasGrants(h http.Header) bool {
	return slices.ContainsFunc(grantHeaders, func(g struct{ name, permission string }) bool { return len(h[g.name]) > 0 })
}

// granteeOf reads one of a header's list, such as id="name". A name alone is an id.
func (c *call) granteeOf(text string) (string, error) {
	kind, value, ok := strings.Cut(text, "=")
	if !ok {
		kind, value = "id", text
	}
	value = strings.Trim(strings.TrimSpace(value), `"`)
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "id":
		return value, c.checkGrantee(value, false)
	case "uri":
		return value, c.checkGrantee(value, true)
	case "emailaddress":
		return "", s3err.NotImplemented.With("Grantees by e-mail address are not implemented.")
	}
	return "", s3err.InvalidArgument.With("Argument format not recognized").Detail("ArgumentValue", text)
}

func (c *call) checkGrantee(who string, group bool) error {
	switch {
	case group && who != groupAll && who != groupAuthenticated && who != groupLogs:
		return s3err.Argument("Group/URI", who, "Invalid group uri")
	case !group && !c.isUser(who):
		return s3err.Argument("CanonicalUser/ID", who, "Invalid id")
	}
	return nil
}

// isUser reports whether there is a user of this name; the account counts as one.
func (s *Server) isUser(name string) bool {
	if name == account {
		return true
	}
	for _, u := range s.Users() {
		if u.Name == name {
			return true
		}
	}
	return false
}

// newBucketACL decides the ACL and the ownership of a new bucket, and gives the settings for them.
func (c *call) newBucketACL() (map[string][]byte, error) {
	h := c.r.Header
	settings := map[string][]byte{}
	owner := h.Get("X-Amz-Object-Ownership")
	if owner != "" && !slices.Contains(ownerships, owner) {
		return nil, s3err.InvalidArgument.With("Invalid x-amz-object-ownership header: %s", owner).Detail("ArgumentName", "x-amz-object-ownership")
	}
	a, given, err := c.headerACL(h)
	switch {
	case err != nil:
		return nil, err
	case owner == "" || owner == ownerEnforced:
		if given && (len(a.Grants) > 0 || h.Get("X-Amz-Acl") != "private" && h.Get("X-Amz-Acl") != "bucket-owner-full-control") {
			return nil, s3err.InvalidBucketACLWithOwnership
		}
		return settings, nil
	case a.isPublic() && c.BlockPublicAccess:
		return nil, s3err.AccessDenied
	}
	settings[settingOwnership] = []byte(owner)
	if len(a.Grants) > 0 {
		if settings[settingACL], err = json.Marshal(a); err != nil {
			return nil, err
		}
	}
	return settings, nil
}

// checkObjectACL decides the ACL of a new object. Objects have none of their own: what says no more than that the owner has
// full control is taken.
func (c *call) checkObjectACL(h http.Header) error {
	canned := h.Get("X-Amz-Acl")
	granted := hasGrants(h)
	if canned == "" && !granted {
		return nil
	}
	if _, ok := cannedACLs[canned]; !ok && canned != "" {
		return s3err.Argument("x-amz-acl", canned, "")
	}
	if !granted && (canned == "private" || canned == "bucket-owner-full-control") {
		return nil
	}
	return c.noObjectACL()
}

// noObjectACL is the answer to who sets the ACL of an object.
func (c *call) noObjectACL() error {
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	if ownershipOf(b) == ownerEnforced {
		return s3err.AccessControlListNotSupported
	}
	return s3err.NotImplemented.With("ACLs of objects are not implemented: use the bucket's policy.")
}

type owner struct{ ID, DisplayName string }

// xmlGrant is a grant in an answer.
type xmlGrant struct {
	Grantee struct {
		Space       string `xml:"xmlns:xsi,attr"`
		Type        string `xml:"xsi:type,attr"`
		ID          string `xml:",omitempty"`
		DisplayName string `xml:",omitempty"`
		URI         string `xml:",omitempty"`
	}
	Permission string
}

// writeACL answers with an ACL. The owner is who asks, as everywhere in this store.
func (c *call) writeACL(a acl) error {
	name := c.user.Name
	if c.anonymous {
		name = account
	}
	var out struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ AccessControlPolicy"`
		Owner   owner
		Grants  []xmlGrant `xml:"AccessControlList>Grant"`
	}
	out.Owner = owner{name, name}
	for _, g := range append([]grant{{name, fullControl}}, a.Grants...) {
		x := xmlGrant{Permission: g.Permission}
		x.Grantee.Space = "http://www.w3.org/2001/XMLSchema-instance"
		if g.isGroup() {
			x.Grantee.Type, x.Grantee.URI = "Group", g.Grantee
		} else {
			x.Grantee.Type, x.Grantee.ID, x.Grantee.DisplayName = "CanonicalUser", g.Grantee, g.Grantee
		}
		out.Grants = append(out.Grants, x)
	}
	return c.writeXML(out)
}

func (c *call) getBucketACL() error {
	if err := c.authorizeBucket("GetBucketAcl"); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	a, err := c.aclOf(b)
	if err != nil {
		return err
	}
	if ownershipOf(b) == ownerEnforced {
		a = acl{}
	}
	return c.writeACL(a)
}

func (c *call) putBucketACL() error {
	if err := c.authorizeBucket("PutBucketAcl"); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	if ownershipOf(b) == ownerEnforced {
		return s3err.AccessControlListNotSupported
	}
	body, err := c.readAll(maxSettingBytes)
	if err != nil {
		return err
	}
	a, given, err := c.headerACL(c.r.Header)
	switch {
	case given && len(body) > 0:
		return s3err.UnexpectedContent
	case err != nil:
		return err
	case !given && len(body) == 0:
		return s3err.MissingSecurityHeader.Detail("MissingHeaderName", "x-amz-acl")
	case !given:
		if a, err = c.readACL(body); err != nil {
			return err
		}
	}
	if a.isPublic() && c.publicAccess(b).BlockPublicAcls {
		return s3err.AccessDenied
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return c.storeSetting(settingACL, text, http.StatusOK)
}

// readACL reads an ACL of a request's body. The owner's full control is left out: it is always there.
func (c *call) readACL(body []byte) (a acl, err error) {
	var in struct {
		XMLName xml.Name `xml:"AccessControlPolicy"`
		Owner   *owner
		Grants  []struct {
			Grantee struct {
				Type    string `xml:"http://www.w3.org/2001/XMLSchema-instance type,attr"`
				ID, URI string
				// Not read: the store has names and no addresses, and a grantee has one name.
				DisplayName, EmailAddress string
			}
			Permission string
		} `xml:"AccessControlList>Grant"`
	}
	if s3xml.Decode(body, &in) != nil || in.Owner == nil || in.Owner.ID == "" || len(in.Grants) > maxGrants {
		return a, s3err.MalformedACL
	}
	if in.Owner.ID != c.user.Name && in.Owner.ID != account {
		return a, s3err.Argument("CanonicalUser/ID", in.Owner.ID, "Invalid id")
	}
	for _, g := range in.Grants {
		who := g.Grantee.ID
		if g.Grantee.Type == "Group" {
			who = g.Grantee.URI
		}
		switch {
		case permitted[g.Permission] == nil, who == "", g.Grantee.Type != "Group" && g.Grantee.Type != "CanonicalUser":
			return a, s3err.MalformedACL
		}
		if err := c.checkGrantee(who, g.Grantee.Type == "Group"); err != nil {
			return a, err
		}
		if who != in.Owner.ID || g.Permission != fullControl {
			a.Grants = append(a.Grants, grant{who, g.Permission})
		}
	}
	return a, nil
}

// statForACL checks that the caller may do action on the version that the request names, and that it is there.
func (c *call) statForACL(action string) error {
	version, err := c.version()
	if err != nil {
		return err
	}
	if err := c.authorizeVersion(action, c.bucket, c.key, version, nil); err != nil {
		return err
	}
	o, err := c.Engine.StatVersion(c.bucket, c.key, version)
	if err != nil {
		return c.absent(version, err)
	}
	c.setVersion(c.bucket, versionHeader, o.Version)
	return nil
}

func (c *call) getObjectACL() error {
	if err := c.statForACL("GetObjectAcl"); err != nil {
		return err
	}
	return c.writeACL(acl{})
}

func (c *call) putObjectACL() error {
	if err := c.statForACL("PutObjectAcl"); err != nil {
		return err
	}
	// What is the case anyway can be asked for, where ACLs count.
	canned := c.r.Header.Get("X-Amz-Acl")
	if b, err := c.Engine.Bucket(c.bucket); err == nil && ownershipOf(b) != ownerEnforced && c.r.ContentLength <= 0 && !hasGrants(c.r.Header) &&
		(canned == "private" || canned == "bucket-owner-full-control") {
		c.w.WriteHeader(http.StatusOK)
		return nil
	}
	return c.noObjectACL()
}
