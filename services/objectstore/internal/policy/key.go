package policy

import "strings"

// The condition keys that follow from the user.
const (
	keyPrincipalARN = "aws:PrincipalArn"
	keyUserName     = "aws:username"
	keyUserID       = "aws:userid"
	arnBeforeUser   = "arn:aws:iam::000000000000:user/"
)

// conditionKey is a key that conditions may ask for.
type conditionKey struct {
	// actions are those whose requests can have it; nil: all.
	actions []string
	isIP    bool
}

var (
	listings = []string{"s3:ListBucket", "s3:ListBucketVersions"}
	puts     = []string{"s3:PutObject"}
	ofACLs   = []string{"s3:PutObject", "s3:PutObjectAcl", "s3:PutBucketAcl", "s3:CreateBucket"}
	ofTags   = []string{"s3:GetObject", "s3:GetObjectVersion", "s3:GetObjectAcl", "s3:GetObjectVersionAcl", "s3:PutObjectAcl",
		"s3:GetObjectTagging", "s3:GetObjectVersionTagging", "s3:PutObjectTagging", "s3:PutObjectVersionTagging",
		"s3:DeleteObjectTagging", "s3:DeleteObjectVersionTagging", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:GetObjectAttributes"}
	retentions = []string{"s3:PutObject", "s3:PutObjectRetention"}
	ofVersions = []string{"s3:GetObjectVersion", "s3:GetObjectVersionAcl", "s3:GetObjectVersionAttributes", "s3:GetObjectVersionTagging",
		"s3:PutObjectVersionAcl", "s3:PutObjectVersionTagging", "s3:DeleteObjectVersion", "s3:DeleteObjectVersionTagging"}
)

// tagKey is the beginning of the keys of an object's tags; the name of the tag follows.
const tagKey = "s3:existingobjecttag/"

// conditionKeys has the keys in lower case: keys have no case.
var conditionKeys = map[string]conditionKey{
	"aws:sourceip":                            {isIP: true},
	"aws:securetransport":                     {},
	"aws:currenttime":                         {},
	"aws:epochtime":                           {},
	"aws:useragent":                           {},
	"aws:referer":                             {},
	"aws:principaltype":                       {},
	"aws:principalarn":                        {},
	"aws:username":                            {},
	"aws:userid":                              {},
	"s3:authtype":                             {},
	"s3:signatureversion":                     {},
	"s3:signatureage":                         {},
	"s3:tlsversion":                           {},
	"s3:x-amz-content-sha256":                 {},
	"s3:prefix":                               {actions: listings},
	"s3:delimiter":                            {actions: listings},
	"s3:max-keys":                             {actions: listings},
	"s3:x-amz-acl":                            {actions: ofACLs},
	"s3:x-amz-copy-source":                    {actions: puts},
	"s3:x-amz-metadata-directive":             {actions: puts},
	"s3:x-amz-server-side-encryption":         {actions: puts},
	"s3:x-amz-storage-class":                  {actions: puts},
	"s3:objectcreationoperation":              {actions: puts},
	"s3:if-none-match":                        {actions: puts},
	"s3:if-match":                             {actions: []string{"s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"}},
	"s3:versionid":                            {actions: ofVersions},
	"s3:object-lock-mode":                     {actions: retentions},
	"s3:object-lock-retain-until-date":        {actions: retentions},
	"s3:object-lock-remaining-retention-days": {actions: retentions},
	"s3:object-lock-legal-hold":               {actions: []string{"s3:PutObject", "s3:PutObjectLegalHold"}},
}

func keyOf(name string) (conditionKey, bool) {
	low := strings.ToLower(name)
	if rest, ok := strings.CutPrefix(low, tagKey); ok && rest != "" {
		return conditionKey{actions: ofTags}, true
	}
	k, ok := conditionKeys[low]
	return k, ok
}
